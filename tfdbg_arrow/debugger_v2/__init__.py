"""Import and export of dumps of TensorFlow's Debugger V2, without TensorFlow."""
