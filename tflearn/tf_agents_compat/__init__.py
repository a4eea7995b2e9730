"""Drop-ins for `tf_agents.train.learner` and `ppo_learner`: an existing program changes the imports' package."""
