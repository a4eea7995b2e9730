"""Drop-ins for TF-Agents' learners."""
