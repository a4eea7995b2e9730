"""A simulator in a process of its own: CartPole of gymnasium. Copy tflearn/external/client.py beside it.

python external_simulator.py http://localhost:8600 100
"""

import sys
import time

import client
import gymnasium


def play(simulator: client.Client, environment: gymnasium.Env) -> float:
    """Plays one episode; returns the sum of its rewards."""
    observation, _ = environment.reset()
    action = simulator.begin(observation.tolist())
    while action is not None:
        observation, reward, terminated, truncated, _ = environment.step(action)
        action = simulator.step(reward, observation.tolist(), terminated, truncated)
    return simulator.last_return or 0.0


def main(address: str, num_episodes: int) -> None:
    """Plays complete episodes; those that are dropped do not count."""
    simulator, environment = client.Client(address), gymnasium.make('CartPole-v1')
    played = 0
    while played < num_episodes:
        try:
            print(play(simulator, environment), flush=True)
            played += 1
        except client.EpisodeGoneError as error:
            print(error, file=sys.stderr)
        except client.CollectorBusyError:
            time.sleep(1.0)  # noqa: TID251
        except ConnectionError:  # the run has ended
            break


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
