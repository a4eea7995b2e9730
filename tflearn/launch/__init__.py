"""Where jobs run: a topology is data, `local` runs it as processes of this machine."""
