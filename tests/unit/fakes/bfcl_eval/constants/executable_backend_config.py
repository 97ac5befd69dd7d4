"""Where functions are described."""

MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Till": "till.json"}
