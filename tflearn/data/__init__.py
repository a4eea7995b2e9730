"""Experience in files, with or without an environment;
off-policy evaluation of it, and the gate of new policies.
"""
