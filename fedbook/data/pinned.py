"""SHA-256 of the files that are downloaded, by dataset and file, as others have published them:
torchvision's and Keras's loaders for the first five, several independent downloads for Tiny
ImageNet.

What stands here is refused if one bit differs. A file without an entry is checked by its
publisher's list (mitbih, shakespeare), by MD5 (mnist_m) or by its size (notmnist); of the rest
(font_digits, scene_digits, domainnet) the first download is trusted, recorded, and compared with
from then on.
"""

SHA256: dict[str, str] = {
    "mnist/train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "mnist/train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "mnist/t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
    "fashion_mnist/train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "fashion_mnist/train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "fashion_mnist/t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "fashion_mnist/t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
    "usps/usps.bz2": ("3771e9dd6ba685185f89867b6e249233dd74652389f263963b3b741e994b034f"),
    "usps/usps.t.bz2": ("a9c0164e797d60142a50604917f0baa604f326e9a689698763793fa5d12ffc4e"),
    "svhn/train_32x32.mat": ("435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
    "svhn/test_32x32.mat": ("cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    "cifar10/cifar-10-python.tar.gz": (
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
    ),
    "cifar100/cifar-100-python.tar.gz": (
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
    ),
    "tiny_imagenet/tiny-imagenet-200.zip": (
        "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"
    ),
}
