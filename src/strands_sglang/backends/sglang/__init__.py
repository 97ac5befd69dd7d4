"""SGLang: the asynchronous client of its native API, one prompt of ids in, one checked answer out."""
