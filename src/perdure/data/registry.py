"""The datasets by name, with their published checksums.

The md5 sums are torchvision's; those of plain idx files belong to the unpacked `.gz` files. The
sha256 sums of the folders of Tiny-ImageNet were computed from two independent copies of the images.
`tiny_imagenet.npz` contains the first two bytes of the sha256 of each of their files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from perdure.data.decode import decode_cifar, decode_idx, decode_npz, decode_tiny_imagenet
from perdure.data.spec import DataError, File, Layout, Spec

_IDX = {  # name: md5 of the .gz file and of the plain file
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873 6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432 a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3 2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c 27ae3e4e09519cfbb04c329615203637",
}

_MNIST = Spec(
    name="mnist",
    train=(60_000, 1, 28, 28),
    test=(10_000, 1, 28, 28),
    classes=10,
    decode=decode_idx,
    layouts=tuple(
        Layout(
            tuple(
                File(f"{folder}{name}{suffix}", f"md5:{digests.split()[which]}")
                for name, digests in _IDX.items()
            )
        )
        for folder in ("MNIST/raw/", "")
        for which, suffix in enumerate((".gz", ""))
    ),
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
)

_MNIST5K_DIGEST = "sha256:ebff782d28413d04b61bb7c7a5f73ef311383c99054de97d9c1536707c162287"

_MNIST5K = Spec(
    name="mnist5k",
    train=(4_000, 1, 28, 28),
    test=(1_000, 1, 28, 28),
    classes=10,
    decode=decode_npz,
    layouts=(Layout((File("mnist5k/mnist5k.npz", _MNIST5K_DIGEST),)),),
    bundled=Path(str(files("perdure.data"))),
)


def _cifar(name: str, classes: int, archive: File, *members: File) -> Spec:
    return Spec(
        name=name,
        train=(50_000, 3, 32, 32),
        test=(10_000, 3, 32, 32),
        classes=classes,
        decode=decode_cifar,
        layouts=(Layout((archive,), members), Layout(members)),
        url="https://www.cs.toronto.edu/~kriz",
    )


_CIFAR10 = _cifar(
    "cifar10",
    10,
    File("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
    File("cifar-10-batches-py/data_batch_1", "md5:c99cafc152244af753f735de768cd75f"),
    File("cifar-10-batches-py/data_batch_2", "md5:d4bba439e000b95fd0a9bffe97cbabec"),
    File("cifar-10-batches-py/data_batch_3", "md5:54ebc095f3ab1f0389bbae665268c751"),
    File("cifar-10-batches-py/data_batch_4", "md5:634d18415352ddfa80567beed471001a"),
    File("cifar-10-batches-py/data_batch_5", "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
    File("cifar-10-batches-py/test_batch", "md5:40351d587109b95175f43aff81a1287e"),
)

_CIFAR100 = _cifar(
    "cifar100",
    100,
    File("cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    File("cifar-100-python/train", "md5:16019d7e3df5f24257cddd939b257f8d"),
    File("cifar-100-python/test", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),
)

_TINY_ZIP = File("tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de")
_TINY_FILES = (
    File("tiny-imagenet-200/wnids.txt"),
    File(
        "tiny-imagenet-200/train",
        "sha256:2ef8a6b294c9b01c90b37f6277fcbaea93ebe85931b2ebc80b5ea3ccbb021db0",
    ),
    File(
        "tiny-imagenet-200/val",
        "sha256:e5fcbc09577cf313c97a246ffcd647177835c6a9292ca95a74f7d25617700a2a",
    ),
)


def _tiny_checksums() -> dict[str, dict[str, bytes]]:
    """The first two bytes of the sha256 of each image, and of the annotations."""
    with np.load(str(files("perdure.data") / "tiny_imagenet.npz")) as stored:
        wnids = stored["wnids"].astype(str)
        train, val = stored["train"], stored["val"]
        annotations = stored["annotations"].tobytes()
    return {
        "train": {
            f"{wnid}/images/{wnid}_{i}.JPEG": start.tobytes()
            for wnid, starts in zip(wnids, train, strict=True)
            for i, start in enumerate(starts)
        },
        "val": {
            "val_annotations.txt": annotations,
            **{f"images/val_{i}.JPEG": start.tobytes() for i, start in enumerate(val)},
        },
    }


_TINY_IMAGENET = Spec(
    name="tiny-imagenet",
    train=(100_000, 3, 64, 64),
    test=(10_000, 3, 64, 64),
    classes=200,
    decode=decode_tiny_imagenet,
    layouts=(Layout((_TINY_ZIP,)), Layout(_TINY_FILES)),
    url="http://cs231n.stanford.edu",
    checksums=_tiny_checksums,
)

DATASETS: dict[str, Spec] = {
    spec.name: spec for spec in (_MNIST, _MNIST5K, _CIFAR10, _CIFAR100, _TINY_IMAGENET)
}


def find_spec(name: str | Spec) -> Spec:
    """The dataset with this name; a `Spec` is returned as it is."""
    if isinstance(name, Spec):
        return name
    if name not in DATASETS:
        raise DataError(f"there is no dataset {name!r}; the datasets are {', '.join(DATASETS)}")
    return DATASETS[name]
