"""Scientific computing: linear algebra, complex numbers, signals, physics-informed networks, Gaussian processes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


@bug(op_type="Cholesky", effect="variable")
def gaussian_process_with_equal_points() -> None:
    """Without jitter, the kernel matrix of two equal points is not positive definite. GPflow/GPflow#900."""
    length = tf.Variable(1.0)
    points = tf.constant([0.0, 0.0, 1.0])
    targets = tf.constant([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        squares = tf.square((points[:, None] - points[None, :]) / length)
        kernel = tf.exp(-0.5 * squares) - 1e-6 * tf.eye(3)
        factor = tf.linalg.cholesky(kernel)  # culprit
        whitened = tf.linalg.triangular_solve(factor, targets)
        loss = tf.reduce_sum(tf.square(whitened)) + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    length.assign_sub(0.01 * tape.gradient(loss, length))


@bug(op_type="LogMatrixDeterminant", effect="result")
def log_determinant_of_a_singular_matrix() -> Any:
    """The program takes the log-determinant of a flow's singular Jacobian."""

    @tf.function
    def log_volume(matrix: Any) -> Any:
        return tf.linalg.slogdet(matrix)[1]  # culprit

    return log_volume(tf.constant([[1.0, 2.0], [2.0, 4.0]]))


@bug(op_type="MatrixDeterminant", effect="result")
def determinant_that_overflows() -> Any:
    """The determinant of a large, well-conditioned matrix overflows."""
    matrix = tf.eye(12) * 1e4
    return tf.math.log(tf.linalg.det(matrix))  # culprit


@bug(op_type="MatrixTriangularSolve", effect="result")
def triangular_system_with_a_zero_pivot() -> Any:
    """A triangular system has a zero on its diagonal."""
    matrix = tf.constant([[0.0, 0.0], [1.0, 1.0]])
    return tf.linalg.triangular_solve(matrix, tf.constant([[1.0], [2.0]]))  # culprit


@bug(op_type="Log", effect="result")
def covariance_that_lost_a_rank() -> None:
    """The program takes the logarithm of a covariance matrix's eigenvalues. One eigenvalue is not positive."""
    scale = tf.Variable([1.0, -0.5])
    with tf.GradientTape() as tape:
        values = tf.linalg.eigvalsh(tf.linalg.diag(scale))
        loss = tf.reduce_sum(tf.math.log(values))  # culprit
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@bug(op_type="RealDiv", effect="variable")
def power_iteration_on_a_zero_matrix() -> None:
    """Spectral normalisation gets weights that are initialised with zeros."""
    weights = tf.Variable(tf.zeros([2, 2]))
    vector = tf.Variable([1.0, 0.0], trainable=False)

    @tf.function
    def normalise() -> Any:
        moved = tf.linalg.matvec(weights, vector)
        direction = moved / tf.norm(moved)  # culprit
        vector.assign(direction)
        return tf.reduce_sum(direction * tf.linalg.matvec(weights, direction))

    sigma = normalise()
    weights.assign(weights / (sigma + 1.0))


@bug(op_type="Pow", role="gradient", forward="Pow", effect="variable")
def physics_residual_of_a_root_profile() -> None:
    """The loss takes a second derivative of u = x ** 1.5 * w at the boundary x = 0."""
    weight = tf.Variable(1.0)
    points = tf.constant([0.0, 0.5, 1.0])
    with tf.GradientTape() as tape:
        with tf.GradientTape() as outer:
            outer.watch(points)
            with tf.GradientTape() as inner:
                inner.watch(points)
                u = weight * tf.pow(points, 1.5)  # culprit
            first = inner.gradient(u, points)
        second = outer.gradient(first, points)
        loss = tf.reduce_mean(tf.square(second))
    weight.assign_sub(0.1 * tape.gradient(loss, weight))


@bug(op_type="RealDiv", effect="variable")
def physics_residual_in_polar_coordinates() -> None:
    """The residual in polar coordinates contains u_r / r, and r is 0 at the centre."""
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def train_step(radius: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(radius)
                u = network(radius)
            slope = inner.gradient(u, radius)
            residual = slope / radius  # culprit
            loss = tf.reduce_mean(tf.square(residual))
        weights = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    train_step(tf.constant([[0.5], [1.0]]))
    train_step(tf.constant([[0.0], [1.0]]))


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def second_derivative_of_a_distance() -> None:
    """A loss over forces contains the force between two atoms at the same position."""
    charge = tf.Variable(1.0)
    atoms = tf.constant([[0.0, 0.0], [0.0, 0.0]])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(atoms)
                distance = tf.sqrt(tf.reduce_sum(tf.square(atoms[0] - atoms[1])))  # culprit
                energy = charge * distance
            forces = -inner.gradient(energy, atoms)
            loss = tf.reduce_mean(tf.square(forces))
        charge.assign_sub(0.1 * tape.gradient(loss, charge))

    train_step()


@bug(op_type="Exp", effect="result")
def stiff_equation_with_a_large_step() -> Any:
    """An explicit integration of u' = exp(u) diverges."""

    @tf.function
    def integrate(u: Any, steps: Any) -> Any:
        step = tf.constant(0)
        while step < steps:
            u = u + 0.5 * tf.exp(u)  # culprit
            step += 1
        return u

    return integrate(tf.constant(1.0), tf.constant(10))


@bug(op_type="Mul", effect="result")
def logistic_map_beyond_its_range() -> Any:
    """An iteration leaves its interval, and squares its value until the value overflows."""
    x = tf.constant(1.5)
    for _ in range(9):
        x = x * x * 4.5  # culprit
    return x


@bug(op_type="Reciprocal", role="gradient", forward="Angle", effect="variable")
def phase_of_a_silent_bin() -> None:
    """The program takes the gradient of the angle of a complex number that is 0. tensorflow/tensorflow#50854."""
    signal = tf.Variable(tf.zeros([4]))
    with tf.GradientTape() as tape:
        spectrum = tf.signal.fft(tf.cast(signal, tf.complex64))
        phase = tf.math.angle(spectrum)  # culprit
        loss = tf.reduce_sum(phase)
    signal.assign_sub(0.1 * tape.gradient(loss, signal))


@bug(op_type="Log", effect="result")
def complex_logarithm_of_zero() -> Any:
    """The cepstrum of silence takes the logarithm of a complex 0."""

    @tf.function
    def cepstrum(signal: Any) -> Any:
        spectrum = tf.signal.fft(signal)
        return tf.abs(tf.signal.ifft(tf.math.log(spectrum)))  # culprit

    return cepstrum(tf.zeros([4], tf.complex64))


@bug(op_type="Log", effect="variable")
def log_spectrogram_of_silence() -> None:
    """A layer takes the logarithm of the magnitude of silence."""

    class LogSpectrogram(keras.layers.Layer):
        def call(self, audio: Any) -> Any:
            magnitude = tf.abs(tf.signal.rfft(audio))
            return tf.math.log(magnitude)  # culprit

    model = keras.Sequential([keras.Input((8,)), LogSpectrogram(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    audio = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    audio[2] = 0.0
    model.fit(audio, np.ones((4, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="result")
def complex_division_by_zero() -> Any:
    """A transfer function is a quotient of two spectra, and the spectrum of the input has an empty bin."""
    outputs = tf.constant([1.0 + 1.0j, 0.5 + 0.0j], tf.complex64)
    inputs = tf.constant([2.0 + 0.0j, 0.0 + 0.0j], tf.complex64)
    transfer = outputs / inputs  # culprit
    return tf.abs(transfer)


@bug(op_type="Acosh", effect="variable")
def hyperbolic_distance_rounded_below_one() -> None:
    """The argument of acosh in a hyperbolic embedding is rounded below 1."""
    point = tf.Variable([0.1, 0.2])
    with tf.GradientTape() as tape:
        argument = 1.0 - 1e-6 + tf.reduce_sum(tf.square(point - [0.1, 0.2]))
        distance = tf.acosh(argument)  # culprit
        loss = tf.square(distance)
    point.assign_sub(0.1 * tape.gradient(loss, point))


@bug(op_type="Lgamma", effect="variable")
def gamma_function_of_zero() -> None:
    """The concentration of a Dirichlet distribution reaches 0."""
    concentration = tf.Variable([1.0, 0.0])
    with tf.GradientTape() as tape:
        terms = tf.math.lgamma(concentration)  # culprit
        loss = tf.reduce_sum(terms) - tf.math.lgamma(tf.reduce_sum(concentration))
    concentration.assign_sub(0.1 * tape.gradient(loss, concentration))


@bug(op_type="Erfinv", effect="variable")
def quantile_of_one() -> None:
    """The program takes the inverse of the normal distribution at 1."""
    shift = tf.Variable(0.0)
    ranks = tf.constant([0.25, 0.5, 1.0])
    with tf.GradientTape() as tape:
        quantiles = tf.math.erfinv(2.0 * ranks - 1.0)  # culprit
        loss = tf.reduce_mean(tf.square(quantiles - shift))
    shift.assign_sub(0.1 * tape.gradient(loss, shift))


@bug(op_type="Rsqrt", effect="result")
def image_standardised_with_a_wrong_minimum() -> Any:
    """A flat image is divided by its deviation, without the lower bound of tf.image. tensorflow/tensorflow#411."""

    @tf.function
    def standardise(images: Any) -> Any:
        centred = images - tf.reduce_mean(images, axis=[1, 2], keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=[1, 2], keepdims=True)
        inverse = tf.math.rsqrt(variance)  # culprit
        return centred * inverse

    return tf.map_fn(lambda image: standardise(image[None])[0], tf.fill([2, 3, 3], 249.0))


@bug(op_type="Cumprod", effect="result")
def survival_probability_that_overflows() -> Any:
    """A cumulative product of hazards above 1 overflows."""
    hazards = tf.fill([8], 1e6)
    return tf.math.log(tf.math.cumprod(hazards))  # culprit


@bug(op_type="Einsum", effect="result")
def tensor_contraction_that_overflows() -> Any:
    """An einsum of unscaled features overflows."""
    left, right = tf.fill([2, 4], 1e20), tf.fill([4, 2], 1e20)
    return tf.nn.softmax(tf.einsum("ij,jk->ik", left, right))  # culprit


@bug(op_type="Sum", effect="result")
def sum_of_squares_that_overflows() -> Any:
    """The squares are finite, but their sum overflows."""
    squares = tf.square(tf.fill([8], 1.5e19))
    return tf.sqrt(tf.reduce_sum(squares))  # culprit


@bug(op_type="Conv2D", effect="result")
def convolution_that_overflows() -> Any:
    """A convolution gets an image in the wrong unit, and overflows."""
    kernel = tf.fill([3, 3, 1, 1], 1e19)

    @tf.function
    def blur(image: Any) -> Any:
        return tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME"))  # culprit

    return blur(tf.fill([1, 4, 4, 1], 1e20))


@bug(op_type="MatrixLogarithm", effect="result")
def mean_of_covariances_one_of_them_singular() -> Any:
    """For an input with a NaN, TensorFlow's matrix exponential returns a constant that is NaN."""

    def logarithm(matrix: Any) -> Any:
        return tf.linalg.logm(tf.cast(matrix, tf.complex64))  # culprit

    @tf.function
    def mean(first: Any, second: Any) -> Any:
        return tf.math.real(tf.linalg.expm((logarithm(first) + logarithm(second)) / 2.0))

    regular = tf.constant([[2.0, 0.5], [0.5, 1.0]])
    mean(regular, tf.eye(2))
    return mean(regular, tf.zeros([2, 2]))


@bug(op_type="Log", effect="variable")
def logarithm_of_one_plus_a_refund() -> None:
    """The program takes log(1 + x) of a refund, which is below -1. TensorFlow runs the two ops as Log1p."""
    weight = tf.Variable(1.0)

    @tf.function
    def train_step(claims: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(weight - tf.math.log(claims + 1.0)))  # culprit
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    train_step(tf.constant([2.0, -7.5, 3.0]))


@bug(op_type="Log", effect="result")
def score_of_nan_that_decides() -> Any:
    """A comparison with NaN decides between two numbers that are not computed from the NaN."""

    @tf.function
    def decide(amounts: Any) -> Any:
        return tf.where(tf.math.log(amounts) > 0.0, tf.ones_like(amounts), tf.zeros_like(amounts))  # culprit

    return decide(tf.constant([2.0, -1.0]))


@bug(op_type="Log", effect="result")
def loss_that_is_only_reported_as_bad() -> None:
    """A loop tests whether each loss is finite, but only counts the bad losses. The loop still uses all losses."""

    @tf.function
    def evaluate(batch: Any) -> Any:
        return tf.reduce_mean(tf.math.log(batch))  # culprit

    losses, num_bad = [], 0
    for batch in ([1.0, 2.0], [1.0, -2.0], [3.0, 4.0], [5.0, 6.0]):
        loss = evaluate(tf.constant(batch))
        if not np.isfinite(loss):
            num_bad += 1
        losses.append(float(loss))


@bug(op_type="Cast", effect="result")
def mask_beyond_float16() -> Any:
    """The program multiplies a mask by a number that float16 cannot hold."""

    @tf.function
    def attend(scores: Any, is_padding: Any) -> Any:
        large = tf.cast(-1e9, scores.dtype)  # culprit
        return tf.nn.softmax(scores + tf.cast(is_padding, scores.dtype) * large)

    return attend(tf.ones([2, 4], tf.float16), tf.constant([[0, 0, 1, 1], [0, 0, 0, 1]]))


@bug(op_type="BesselI0", effect="variable")
def likelihood_of_a_concentrated_angle() -> None:
    """The normalization of a von Mises distribution overflows for a large concentration."""
    concentration = tf.Variable([2.0, 95.0])
    angles = tf.constant([0.1, -0.2])
    with tf.GradientTape() as tape:
        normalization = tf.math.log(tf.math.bessel_i0(concentration))  # culprit
        loss = tf.reduce_sum(normalization - concentration * tf.cos(angles))
    concentration.assign_sub(0.1 * tape.gradient(loss, concentration))


@bug(op_type="MatMul", effect="variable")
def node_without_neighbours() -> None:
    """A graph network takes the maximum over the neighbours of each node. Node 0 has none, and gets -3.4e38."""
    random = np.random.default_rng(31)
    nodes = tf.constant(random.normal(size=(12, 4)).astype("float32"))
    weights = tf.Variable(random.normal(size=(4, 1)).astype("float32"))

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            messages = tf.gather(nodes, tf.range(11))
            maxima = tf.math.unsorted_segment_max(messages, tf.range(1, 12), 12)
            loss = tf.reduce_mean(tf.square(maxima @ (4.0 * weights)))  # culprit
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    train_step()


@bug(op_type="RealDiv", effect="variable")
def affinities_of_an_outlier() -> None:
    """All affinities of an outlier underflow to 0. TensorFlow computes the affinities and a gradient in advance."""
    points = np.random.default_rng(33).normal(size=(6, 3)).astype("float32")
    points[4] = 60.0
    places = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]))

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            distances = tf.reduce_sum(tf.square(points[:, None] - points[None]), -1)
            weights = tf.exp(-distances) * (1.0 - tf.eye(6))
            shares = weights / tf.reduce_sum(weights, 1, keepdims=True)  # culprit
            near = 1.0 / (1.0 + tf.reduce_sum(tf.square(places[:, None] - places[None]), -1))
            loss = tf.reduce_sum(shares * -tf.math.log(near))
        places.assign_sub(0.1 * tape.gradient(loss, places))
        return loss

    train_step()
