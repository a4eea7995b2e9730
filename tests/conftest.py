"""Four logical CPUs for every test: replicas on one machine."""

import tensorflow as tf


def pytest_configure():
    cpu = tf.config.list_physical_devices('CPU')[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
