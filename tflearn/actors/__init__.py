"""Acting: a policy in a batched environment, the metrics of its episodes, and evaluation."""
