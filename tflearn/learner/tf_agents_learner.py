"""Drop-in for `tf_agents.train.learner` and `tf_agents.train.ppo_learner`: a program of theirs changes its imports."""

from tflearn.tf_agents_compat.plain_learner import Learner as Learner
from tflearn.tf_agents_compat.ppo_learner import PPOLearner as PPOLearner

TRAIN_DIR = 'train'
POLICY_SAVED_MODEL_DIR = 'policies'
COLLECT_POLICY_SAVED_MODEL_DIR = 'collect_policy'
GREEDY_POLICY_SAVED_MODEL_DIR = 'greedy_policy'
RAW_POLICY_SAVED_MODEL_DIR = 'policy'
POLICY_CHECKPOINT_DIR = 'checkpoints'
REPLAY_BUFFER_CHECKPOINT_DIR = 'replay_buffer_checkpoints'
