"""Games of several agents: PettingZoo, self-play, leagues."""
