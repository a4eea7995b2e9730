"""Remarks on the suite's rows: what to know of a figure, or, where a row is below a peer, why and what was tried."""

# Keys of `suite_rows.ROWS` -> sentences for the page.
REMARKS = {
    'dqn_cartpole': 'Half of the packaged run of 25,000 train steps, with half of its schedule. Settings were chosen '
    'on seeds 1 to 3.',
    'rainbow_cartpole': 'It takes random actions beside its noisy layers: with these alone two of two seeds stayed at'
    ' 150. Chosen on these seeds.',
    'a2c_cartpole': 'The decreasing rate of learning was chosen on these seeds: at a constant 3e-3 one of them went '
    'up and down and ended at 261. With a lambda of 1 a seed ended at 298.',
    'impala_cartpole': 'At a constant rate one of five fell to 9.',
    'ppo_pendulum': "As good only because SB3's interval is wide: one of its seeds fell to -567, the others are "
    'mostly better than ours, and at -150 after 25,000 steps. They explore by noise that depends on the state '
    '(gSDE), which we do not have. Our settings were chosen on these seeds: iterations of 1,024 steps at a '
    'constant rate had -515, and about -400 with a decreasing rate; rewards that are not normalized gained '
    'nothing.',
    'ppo_t_maze': 'The entropy coefficient was chosen on seeds 2 and 3: at 0.02 both ended at 2, what one gets '
    'without memory; at 0.05 one of five ends at 2.3. Larger iterations, a decreasing rate and twice the steps: '
    'one of 11.',
    'impala_cartpole_hidden': 'At a constant rate of learning of 2e-3 two of two runs of seed 1 fell to 9, one from '
    '500 and for good: the entropy went to 0. At the decreasing rate, chosen on that seed, two of three still '
    'fall midway but come back. A run with gradients clipped at 1 fell too, and was stopped there.',
    'sac_hopper': 'SBX has one seed. The settings are the same; ours go up and down from mark to mark: one seed had '
    '3,253 at the mark before the last and then falls at once, another learns late (504 at 242,000 steps). Only '
    'further seeds were tried.',
    'td3_hopper': 'Few seeds say little: both sides go up and down from mark to mark, by more than the difference. '
    'Only further seeds were tried.',
    'ppo_walker2d': 'SBX has one seed, and trains 625,000 steps of 32 elements where ours has 156,160 of 64. Its '
    'settings were tried in ours, on seeds 11 and 12: the last marks are 2,483 and 3,203 in 833 and 1,039 s, where '
    'the packaged ones have 2,178 and 4,098 in 335 and 520 s; with a decreasing rate, on seed 11, 2,212.',
    'dqn_pong': 'A step is 4 frames, so these are 1.6 million. The one seed was still learning at the end. It has '
    "sticky actions, which RL Zoo's agent, on PongNoFrameskip-v4, has not.",
}
