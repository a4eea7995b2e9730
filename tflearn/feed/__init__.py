"""The feed: batches and items for learners without Reverb, by tf.data service."""
