"""Programs that use a distribution strategy. Usage: `distributed.py PROGRAM ARGUMENTS`.

Each program runs its training without a recording, then once with each backend. The program fails unless all numbers
are equal.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdbg_arrow

BACKENDS = ("native", "tensorflow")
X = np.linspace(0.0, 1.0, 64, dtype=np.float32).reshape(16, 4)


def numbers(value: Any) -> list[bytes]:
    return [np.asarray(tensor).tobytes() for tensor in tf.nest.flatten(value)]


def compare(logdir: str, programs: dict[str, Callable[[], Any]], **settings: Any) -> None:
    for name, run in programs.items():
        wanted = numbers(run())
        for backend in BACKENDS:
            with tfdbg_arrow.capture(f"{logdir}/{name}-{backend}", health_backend=backend, **settings):
                got = numbers(run())
            assert got == wanted, (name, backend)


def training(strategy: Any) -> dict[str, Callable[[], Any]]:
    """Returns Keras's fit, and a custom loop in which the last replica's loss is infinite."""
    last = strategy.num_replicas_in_sync - 1

    def fit() -> Any:
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
            model.compile("adam", "mse", jit_compile=False)
        history = model.fit(X, X.sum(axis=1), epochs=2, batch_size=8, shuffle=False, verbose=0)
        return model.get_weights(), history.history

    def loop() -> Any:
        with strategy.scope():
            weight = tf.Variable([1.0, 2.0])

        def replica_step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.math.log(x) * weight)  # the line of the infinity
            gradient = tape.gradient(loss, weight)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weight.assign_sub(0.1 * total)
            return loss

        @tf.function
        def step(x: Any) -> Any:
            return strategy.run(replica_step, (x,))

        def values(context: Any) -> tf.Tensor:
            return tf.constant([0.0 if context.replica_id_in_sync_group == last else 1.0, 3.0])

        x = strategy.experimental_distribute_values_from_function(values)
        losses = [strategy.experimental_local_results(step(x)) for _ in range(2)]
        if strategy.num_replicas_in_sync == len(losses[0]):
            losses.append(strategy.experimental_local_results(strategy.run(replica_step, (x,))))
        return losses, strategy.experimental_local_results(weight.read_value())

    return {"loop": loop, "fit": fit}


def mirrored(logdir: str) -> None:
    """Runs the training with MirroredStrategy on two logical CPUs."""
    split = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], split)
    compare(logdir, training(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])))


def multi_worker(logdir: str) -> None:
    """Runs one of the two workers of a MultiWorkerMirroredStrategy. TF_CONFIG says which worker."""
    programs = training(tf.distribute.MultiWorkerMirroredStrategy())
    compare(logdir, {"loop": programs["loop"]})


def server(task: str, cluster: str) -> None:
    """Runs a worker or parameter server, which does not record."""
    job, _, index = task.partition(":")
    tf.distribute.Server(tf.train.ClusterSpec(json.loads(cluster)), job_name=job, task_index=int(index)).join()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


REMOTE = "/job:worker/replica:0/task:1/device:CPU:0"


def coordinator(logdir: str, cluster: str) -> None:
    """Runs the coordinator of a ParameterServerStrategy with two workers and a parameter server."""
    spec = tf.train.ClusterSpec(json.loads(cluster))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    compare(logdir, {"loop": lambda: schedule(strategy)})


def schedule(strategy: Any) -> Any:
    """Runs steps on the workers, and functions that the coordinator calls locally, remotely, and on both sides."""
    cluster = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])

    @tf.function
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * weight

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        def replica_step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            weight.assign_sub(0.0 * tape.gradient(loss, weight))
            return loss

        return strategy.run(replica_step, (next(iterator),))

    def make_data() -> Any:
        return tf.data.Dataset.range(1, 3).map(lambda i: tf.cast(i, tf.float32)).batch(2).repeat()

    iterator = iter(cluster.create_per_worker_dataset(make_data))
    results = [cluster.schedule(step, args=(iterator,)) for _ in range(4)]
    cluster.join()
    local = tf.function(lambda x: tf.math.sqrt(x) + 1.0)
    x = tf.constant([4.0])
    found = [local(x)]
    concrete = local.get_concrete_function(x)
    with tf.device(REMOTE):
        found += [local(x).numpy(), concrete(x).numpy(), tf.math.exp(x).numpy()]

    @tf.function
    def on_both_sides(x: tf.Tensor) -> tf.Tensor:
        with tf.device(REMOTE):
            there = local(tf.math.sin(x))
        return there + tf.math.cos(x)

    return [float(result.fetch()) for result in results], found, on_both_sides(x), weight.read_value()


if __name__ == "__main__":
    # Fused kernels round differently, and TensorFlow does not fuse ops whose tensors are recorded.
    passes = (
        "remapping",
        "layout_optimizer",
        "pin_to_host_optimization",
        "constant_folding",
        "arithmetic_optimization",
    )
    tf.config.optimizer.set_experimental_options(dict.fromkeys(passes, False))
    {"mirrored": mirrored, "multi_worker": multi_worker, "coordinator": coordinator, "server": server}[sys.argv[1]](
        *sys.argv[2:]
    )
    sys.stdout.flush()
    # The threads of a cluster may outlive the program.
    os._exit(0)
