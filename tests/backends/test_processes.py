def test_int8_is_built_the_same_in_silence_and_leaves_nothing(is_built_the_same_everywhere):
    """Neither files nor reports: telemetry of either library would leave an identifier in the home directory."""
    is_built_the_same_everywhere(("onnxruntime", "int8"), ("openvino", "int8"))
