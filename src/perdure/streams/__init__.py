"""Streams of training data with the tests that belong to them."""

from perdure.streams.augment import CIFAR10 as CIFAR10
from perdure.streams.augment import TINY_IMAGENET as TINY_IMAGENET
from perdure.streams.augment import CropFlip as CropFlip
from perdure.streams.augment import Normalise as Normalise
from perdure.streams.augment import Scale as Scale
from perdure.streams.encoder import Encoder as Encoder
from perdure.streams.from_batches import from_batches as from_batches
from perdure.streams.from_dataset import from_dataset as from_dataset
from perdure.streams.from_images import from_image_folder as from_image_folder
from perdure.streams.from_table import from_table as from_table
from perdure.streams.from_tensors import from_tensors as from_tensors
from perdure.streams.gcil import gcil as gcil
from perdure.streams.image_encoder import ImageEncoder as ImageEncoder
from perdure.streams.mnist360 import mnist360 as mnist360
from perdure.streams.split import split as split
from perdure.streams.stream import Augment as Augment
from perdure.streams.stream import ComposedTask as ComposedTask
from perdure.streams.stream import Normaliser as Normaliser
from perdure.streams.stream import Stream as Stream
from perdure.streams.stream import Task as Task
from perdure.streams.stream import Test as Test
from perdure.streams.table_encoder import TableEncoder as TableEncoder
from perdure.streams.transformed import permuted as permuted
from perdure.streams.transformed import rotate as rotate
from perdure.streams.transformed import rotated as rotated
