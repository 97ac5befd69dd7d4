"""The parts `SGLangModel` is composed of."""
