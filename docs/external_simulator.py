"""A simulator in a process of its own: CartPole, in Python's standard library alone.

python external_simulator.py http://localhost:8600 100

Copy tflearn/environments/external_client.py beside it, as client.py. The physics are those of Barto, Sutton and
Anderson 1983, as in CartPole-v1.
"""

import math
import random
import sys
import time

import client

MAX_STEPS = 500
MAX_POSITION, MAX_ANGLE = 2.4, math.radians(12)


class CartPole:
    """A pole on a cart, which is pushed to the left or to the right.

    Attributes:
      state: position, velocity, angle of the pole, angular velocity.
    """

    def __init__(self) -> None:
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]

    def push(self, action: int) -> bool:
        """Pushes to the left (0) or the right (1) for 20 ms. Returns whether the pole has fallen, or the cart left."""
        x, velocity, angle, angular = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        # A cart of 1 kg, a pole of 0.1 kg and 1 m, a force of 10 N.
        pushed = ((10.0 if action else -10.0) + 0.05 * angular**2 * sine) / 1.1
        turned = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moved = pushed - 0.05 * turned * cosine / 1.1
        self.state = [x + 0.02 * velocity, velocity + 0.02 * moved, angle + 0.02 * angular, angular + 0.02 * turned]
        return abs(self.state[0]) > MAX_POSITION or abs(self.state[2]) > MAX_ANGLE


def play(simulator: client.SimulatorClient) -> float:
    """Plays one episode; returns the sum of its rewards."""
    cart, num_steps = CartPole(), 0
    action = simulator.begin(cart.state)
    while action is not None:
        fallen = cart.push(action)
        num_steps += 1
        action = simulator.step(1.0, cart.state, terminated=fallen, truncated=num_steps == MAX_STEPS and not fallen)
    return simulator.last_return or 0.0


def main(address: str, num_episodes: int) -> None:
    """Plays complete episodes; those that are dropped do not count."""
    simulator = client.SimulatorClient(address)
    played = 0
    while played < num_episodes:
        try:
            print(play(simulator), flush=True)
            played += 1
        except client.EpisodeGoneError as error:
            print(error, file=sys.stderr)
        except client.CollectorBusyError:
            time.sleep(1.0)  # noqa: TID251
        except ConnectionError:  # the run has ended
            break


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
