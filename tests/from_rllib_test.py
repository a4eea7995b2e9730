"""The page for people who come from RLlib has a place for every setting, and names what is here."""

import contextlib
import dataclasses
import inspect
import pathlib
import re

import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.agents import appo, dqn, impala, ppo, reinforce
from tflearn.core import experience
from tflearn.core.train_step import create_train_step
from tflearn.environments import gymnasium_env
from tflearn.jobs import train_settings
from tflearn.jobs.collect import collect
from tflearn.jobs.evaluate import evaluate
from tflearn.launch import topology
from tflearn.launch.topology import MAX_RESTARTS
from tflearn.networks import networks
from tflearn.optimization import optimizers

PAGE = (pathlib.Path(__file__).parents[1] / 'docs' / 'from-rllib.md').read_text()
# What ray 2.60 lists: ray.rllib.algorithms.impala.IMPALAConfig().to_dict().
SETTINGS = """
_disable_action_flattening _disable_execution_plan_api _disable_initialize_loss_from_dummy_batch
_disable_preprocessor_api _dont_auto_sync_env_runner_states _enable_rl_module_api _env_runners_only
_env_to_module_connector _fake_gpus _is_atari _is_online _learner_class _learner_connector _lr_vf _model_config
_module_to_env_connector _per_module_overrides _prior_exploration_config _rl_module_spec _separate_vf_optimizer
_skip_learners _tf_policy_handles_more_than_one_loss _torch_grad_scaler_class _torch_lr_scheduler_classes
_train_batch_size_per_learner _use_msgpack_checkpoints _validate_config action_mask_key action_space
actions_in_input_normalized add_default_connectors_to_env_to_module_pipeline
add_default_connectors_to_learner_pipeline add_default_connectors_to_module_to_env_pipeline
algorithm_config_overrides_per_module always_attach_evaluation_results auto_wrap_old_gym_envs batch_mode
broadcast_env_runner_states broadcast_interval broadcast_offline_eval_runner_states callbacks
callbacks_on_algorithm_init callbacks_on_checkpoint_loaded callbacks_on_env_runners_recreated
callbacks_on_environment_created callbacks_on_episode_created callbacks_on_episode_end callbacks_on_episode_start
callbacks_on_episode_step callbacks_on_evaluate_end callbacks_on_evaluate_offline_end
callbacks_on_evaluate_offline_start callbacks_on_evaluate_start callbacks_on_offline_eval_runners_recreated
callbacks_on_sample_end callbacks_on_train_result checkpoint_trainable_policies_only clip_actions clip_rewards
compress_observations count_steps_by create_env_on_driver create_local_env_runner custom_async_evaluation_function
custom_eval_function custom_resources_for_main_process custom_resources_per_env_runner custom_resources_per_learner
custom_resources_per_offline_eval_runner dataset_num_iters_per_eval_runner dataset_num_iters_per_learner decay
delay_between_env_runner_restarts_s disable_env_checking eager_max_retraces eager_tracing enable_async_evaluation
enable_connectors enable_env_runner_and_connector_v2 enable_rl_module_and_learner enable_tf1_exec_eagerly
entropy_coeff entropy_coeff_schedule env env_config env_runner_cls env_runner_health_probe_timeout_s
env_runner_restore_timeout_s env_runner_state_server_max_concurrency env_task_fn episode_lookback_horizon
episodes_to_numpy epsilon evaluation_auto_duration_max_env_steps_per_sample
evaluation_auto_duration_min_env_steps_per_sample evaluation_config evaluation_duration evaluation_duration_unit
evaluation_error_after_n_consecutive_skips evaluation_force_reset_envs_before_iteration evaluation_interval
evaluation_num_env_runners evaluation_parallel_to_training evaluation_sample_timeout_s
evaluation_unhealthy_workers_timeout_s exploration_config explore export_native_model_files
extra_python_environs_for_driver extra_python_environs_for_worker fake_sampler framework gamma grad_clip grad_clip_by
gym_env_vectorize_mode ignore_env_runner_failures ignore_final_observation ignore_offline_eval_runner_failures
in_evaluation input input_compress_columns input_config input_filesystem input_filesystem_kwargs input_read_batch_size
input_read_episodes input_read_method input_read_method_kwargs input_read_sample_batches input_read_schema
input_spaces_jsonable iter_batches_kwargs keep_per_episode_custom_metrics learner_config_dict learner_queue_size
learner_queue_timeout local_gpu_idx local_tf_session_args log_gradients log_level log_sys_usage lr lr_schedule
map_batches_kwargs materialize_data materialize_mapped_data max_num_env_runner_restarts
max_num_offline_eval_runner_restarts max_requests_in_flight_per_aggregator_actor
max_requests_in_flight_per_aggregator_worker max_requests_in_flight_per_env_runner max_requests_in_flight_per_learner
max_requests_in_flight_per_offline_eval_runner merge_env_runner_states metrics_episode_collection_timeout_s
metrics_num_episodes_for_smoothing min_sample_timesteps_per_iteration min_time_s_per_iteration
min_train_timesteps_per_iteration minibatch_buffer_size minibatch_size model momentum normalize_actions
num_aggregation_workers num_aggregator_actors_per_learner num_consecutive_env_runner_failures_tolerance
num_cpus_for_main_process num_cpus_per_env_runner num_cpus_per_learner num_cpus_per_offline_eval_runner
num_env_runners num_envs_per_env_runner num_epochs num_gpu_loader_threads num_gpus num_gpus_per_env_runner
num_gpus_per_learner num_gpus_per_offline_eval_runner num_learners num_multi_gpu_tower_stacks num_offline_eval_runners
observation_filter observation_fn observation_space off_policy_estimation_methods offline_data_class
offline_eval_batch_size_per_runner offline_eval_rl_module_inference_only offline_eval_runner_class
offline_eval_runner_health_probe_timeout_s offline_eval_runner_restore_timeout_s offline_evaluation_duration
offline_evaluation_interval offline_evaluation_parallel_to_training offline_evaluation_timeout_s
offline_evaluation_type offline_loss_for_module_fn offline_sampling ope_split_batch_by_episode opt_type optimizer
output output_compress_columns output_config output_filesystem output_filesystem_kwargs output_max_file_size
output_max_rows_per_file output_write_episodes output_write_method output_write_method_kwargs
output_write_remaining_data placement_strategy policies policies_to_train policy_map_cache policy_map_capacity
policy_mapping_fn policy_states_are_swappable postprocess_inputs prelearner_buffer_class prelearner_buffer_kwargs
prelearner_class prelearner_module_synch_period prelearner_use_recorded_module_states preprocessor_pref
remote_env_batch_wait_ms remote_worker_envs render_env replay_buffer_num_slots replay_proportion
replay_sequence_length restart_failed_env_runners restart_failed_offline_eval_runners restart_failed_sub_environments
rollout_fragment_length sample_collector sample_timeout_s sampler_perf_stats_ema_coef seed shuffle_batch_per_epoch
shuffle_buffer_size simple_optimizer stats_cls_lookup sync_filters_on_rollout_workers_timeout_s synchronize_filters
tf_session_args timeout_s_aggregator_manager timeout_s_sampler_manager torch_compile_learner
torch_compile_learner_dynamo_backend torch_compile_learner_dynamo_mode torch_compile_learner_what_to_compile
torch_compile_worker torch_compile_worker_dynamo_backend torch_compile_worker_dynamo_mode torch_ddp_kwargs
torch_skip_nan_gradients train_batch_size update_worker_filter_stats use_env_runner_state_server
use_worker_filter_stats validate_env_runners_after_construction validate_offline_eval_runners_after_construction
vf_loss_coeff vtrace vtrace_clip_pg_rho_threshold vtrace_clip_rho_threshold worker_cls
"""
OURS = {
    'Slicing': experience.Slicing,
    'Queue': experience.Queue,
    'BatchItems': experience.BatchItems,
    'Reuse': experience.Reuse,
    'train.Data': train_settings.Data,
    'train.Device': train_settings.Device,
    'train.Initial': train_settings.Initial,
    'train.Intervals': train_settings.Intervals,
    'ImpalaLoss': impala.ImpalaLoss,
    'NetworkOptions': networks.NetworkOptions,
    'SurrogateOptions': appo.SurrogateOptions,
    'collect': collect,
    'evaluate': evaluate,
    'OptimizerOptions': optimizers.OptimizerOptions,
}


def test_each_setting_has_a_place():
    assert [name for name in SETTINGS.split() if f'`{name}`' not in PAGE] == []


@pytest.mark.parametrize('owner', OURS)
def test_what_is_named_is_there(owner):
    named = set(re.findall(rf'`(?:[^`]* )?{re.escape(owner)}\.(\w+)', PAGE))
    thing = OURS[owner]
    if dataclasses.is_dataclass(thing):
        names = {field.name for field in dataclasses.fields(thing)}
    else:
        names = set(inspect.signature(thing).parameters)
    assert named
    assert named <= names


def test_describes_nested_observations():
    assert 'Every agent takes it as an observation' in PAGE
    with contextlib.closing(gymnasium_env.make('CartPole-v1', 1, seed=0)) as environment:
        spec = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
        nested = dataclasses.replace(environment.specs, observation={'place': spec, 'speed': spec})
    for module in (impala, appo, ppo, dqn, reinforce):
        module.make_agent(nested, create_train_step(), module.EXPERIENCE)


def test_describes_what_the_launcher_restarts():
    assert f'up to {MAX_RESTARTS} times each' in PAGE and 'where a signal killed them' in PAGE
    jobs = topology.run_topology(package='scripts', flags=[], num_collectors=1).jobs
    assert {job.kind for job in jobs if job.restart.after_error} == {'collect', 'evaluate'}


def test_describes_environments_that_hang():
    assert "die or hang only with `gymnasium_env.make.vectorization = 'worker_processes'`" in PAGE
    assert 'replace environments that hang or die' in ' '.join(str(gymnasium_env.make.__doc__).split())
