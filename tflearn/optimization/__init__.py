"""What agents minimize, and with what: losses as pure functions, optimizers, schedules."""
