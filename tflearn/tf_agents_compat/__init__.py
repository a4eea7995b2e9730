"""Drop-ins for TF-Agents' Learner and PPOLearner."""
