"""External simulators: programs in any language that ask for actions and return rewards over HTTP, in JSON."""
