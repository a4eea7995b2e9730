"""The product loop: logs become data, and a policy that data show to be better is promoted."""
