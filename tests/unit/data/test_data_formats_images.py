"""Image sets: small images in the folders and lists of the official archives."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedquilt.data.sources.formats import folders, lists
from fedquilt.data.sources.formats.pictures import decoded
from fedquilt.errors import InputError


def picture(path, colour, size=(8, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def colours(images):
    """The red of each image, in tens: what JPEG keeps of a plain colour."""
    return np.rint(images[:, 0, 0, 0] / 10).astype(int).tolist()


def test_shorter_side_is_scaled_and_the_middle_kept(tmp_path):
    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = (200, 100, 50)
    middle = np.array([200, 100, 50]).reshape(3, 1, 1)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert (decoded([tmp_path / "wide.png"], 4) == middle).all()
    Image.fromarray(pixels.transpose(1, 0, 2).copy()).save(tmp_path / "tall.png")
    assert (decoded([tmp_path / "tall.png"], 4) == middle).all()


def test_every_mode_becomes_rgb_in_order(tmp_path):
    paths = [
        picture(tmp_path / "grey.png", 70, mode="L"),
        picture(tmp_path / "see.png", (10, 20, 30, 255), mode="RGBA"),
        picture(tmp_path / "one.png", 1, mode="1"),
        picture(tmp_path / "web.webp", (90, 90, 90), size=(300, 200)),
    ]
    found = decoded(paths, 5)
    assert found.shape == (4, 3, 5, 5)
    assert found.dtype == np.uint8
    assert found[:3, :, 2, 2].tolist() == [[70, 70, 70], [10, 20, 30], [255, 255, 255]]
    assert colours(found)[3] == 9


def test_many_large_jpegs(tmp_path):
    paths = [picture(tmp_path / f"{i}.jpg", (10 * i, 0, 0), size=(640, 480)) for i in range(20)]
    assert colours(decoded(paths, 32)) == list(range(20))


def test_a_broken_image_is_named(tmp_path):
    good = picture(tmp_path / "a.jpg", (1, 2, 3), size=(64, 64))
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(good.read_bytes()[:-200])
    junk = tmp_path / "junk.png"
    junk.write_bytes(b"no image")
    for bad in (cut, junk):
        with pytest.raises(InputError, match=rf"{bad.name} cannot be read as an image"):
            decoded([good, bad, good], 8)
    with pytest.raises(InputError, match=r"There is no image .*none.png"):
        decoded([tmp_path / "none.png"], 8)
    with pytest.raises(InputError, match="size must be a whole number of pixels, got 0"):
        decoded([good], 0)


def test_tiny_imagenet(tmp_path):
    base = tmp_path / "tiny-imagenet-200"
    for red, wnid in ((10, "n02"), (20, "n01")):
        for i in range(2):
            picture(base / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (red, 0, 0), (64, 64))
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text("n02_0.JPEG\t0\t0\t63\t63\n")
    for i, red in enumerate((30, 40)):
        picture(base / "val" / "images" / f"val_{i}.JPEG", (red, 0, 0), (64, 64))
    notes = base / "val" / "val_annotations.txt"
    notes.write_text("val_1.JPEG\tn02\t0\t32\t44\t62\nval_0.JPEG\tn01\t1\t2\t3\t4\n")
    found = folders.tiny_imagenet(tmp_path, size=16)
    assert found.y.tolist() == [0, 0, 1, 1]  # n01, then n02
    assert colours(found.x) == [2, 2, 1, 1]
    assert found.y_test.tolist() == [1, 0]
    assert colours(found.x_test) == [4, 3]
    assert (found.x.shape[1:], found.classes) == ((3, 16, 16), 2)
    notes.write_text("val_1.JPEG\tn09\t0\t32\t44\t62\n")
    with pytest.raises(InputError, match="names a class that is not in train"):
        folders.tiny_imagenet(tmp_path)


@pytest.mark.parametrize(
    ("read", "below", "names"),
    [(folders.eurosat, "2750", ("AnnualCrop", "Forest")), (folders.resisc45, "NWPU-RESISC45", ("airplane", "zoo"))],
)
def test_class_folders(tmp_path, read, below, names):
    for place, name in enumerate(names):
        for i in range(1, 3):
            picture(tmp_path / below / name / f"{name}_{i}.jpg", (100 * place + 10 * i, 0, 0), (64, 64))
    (tmp_path / below / names[0] / "Thumbs.db").write_bytes(b"not an image, nor called one")
    found = read(tmp_path, size=8)
    assert found.y.tolist() == [0, 0, 1, 1]
    assert colours(found.x) == [1, 2, 11, 12]
    assert (found.x_test, found.classes) == (None, 2)
    (tmp_path / below / "zzz").mkdir()
    with pytest.raises(InputError, match="zzz holds no images"):
        read(tmp_path)


def test_dtd_split_one(tmp_path):
    base = tmp_path / "dtd"
    for place, name in enumerate(("banded", "woven")):
        for i in range(1, 4):
            picture(base / "images" / name / f"{name}_000{i}.jpg", (100 * place + 10 * i, 0, 0), (40, 30))
    (base / "labels").mkdir()
    for part, number in (("train1", 2), ("val1", 3), ("test1", 1)):
        lines = [f"{name}/{name}_000{number}.jpg\n" for name in ("banded", "woven")]
        (base / "labels" / f"{part}.txt").write_text("".join(lines))
    found = folders.dtd(tmp_path, size=8)
    assert colours(found.x) == [2, 12, 3, 13]
    assert found.y.tolist() == [0, 1, 0, 1]
    assert (colours(found.x_test), found.y_test.tolist()) == ([1, 11], [0, 1])
    (base / "labels" / "val1.txt").write_text("zigzagged/zigzagged_0001.jpg\n")
    with pytest.raises(InputError, match=r"val1.txt: 'zigzagged/.* names a class that has no folder"):
        folders.dtd(tmp_path)
    (base / "labels" / "val1.txt").write_text("woven/woven_0099.jpg\n")
    with pytest.raises(InputError, match=r"There is no image .*woven_0099.jpg"):
        folders.dtd(tmp_path)


def test_image_net_lt(tmp_path):
    picture(tmp_path / "train" / "n01440764" / "n01440764_190.JPEG", (10, 0, 0))
    picture(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", (20, 0, 0))
    train = tmp_path / "ImageNet_LT_train.txt"
    train.write_text("train/n01440764/n01440764_190.JPEG 999\n")
    (tmp_path / "ImageNet_LT_test.txt").write_text("val/ILSVRC2012_val_00000001.JPEG 65\n")
    found = lists.image_net_lt(tmp_path, size=4)
    assert (found.y.tolist(), found.y_test.tolist(), found.classes) == ([999], [65], 1000)
    assert (colours(found.x), colours(found.x_test)) == ([1], [2])
    for line in ("train/a.JPEG 1000\n", "train/a.JPEG\n", "\n"):
        train.write_text(line)
        with pytest.raises(InputError, match=r"ImageNet_LT_train.txt: line 1 is"):
            lists.image_net_lt(tmp_path)


def test_inaturalist_users(tmp_path):
    for i, name in enumerate(("aa", "bb", "cc")):
        picture(tmp_path / "train_val_images" / "Aves" / f"Species {i}" / f"{name}.jpg", (10 * i, 0, 0))
    below = tmp_path / "inaturalist-user-120k"
    below.mkdir()
    train = below / "federated_train_user_120k.csv"
    train.write_text("user_id,image_id,class,label\n12,bb,4,77\n7,aa,0,5\n")
    (below / "test.csv").write_text("image_id,class,label\ncc,2,9\n")
    found = lists.inaturalist(tmp_path, size=4)
    assert found.user.tolist() == [12, 7]
    assert (found.y.tolist(), found.y_test.tolist(), found.classes) == ([4, 0], [2], 5)
    assert (colours(found.x), colours(found.x_test)) == ([1, 0], [2])
    train.rename(below / "federated_train_geo_100.csv")
    assert lists.inaturalist(tmp_path, size=4).y.tolist() == [4, 0]
    (below / "federated_train_geo_30k.csv").write_text("user_id,image_id,class\n1,aa,4\n")
    with pytest.raises(InputError, match=r"several lists: federated_train_geo_100.csv, federated_train_geo_30k.csv"):
        lists.inaturalist(tmp_path)
    train.write_text("user_id,image_id,class\n12,zz,4\n")
    with pytest.raises(InputError, match=r"has no zz.jpg. Unpack the images of iNaturalist 2017"):
        lists.inaturalist(tmp_path)
    train.write_text("image_id,class\nzz,4\n")
    with pytest.raises(InputError, match="has no column 'user_id'"):
        lists.inaturalist(tmp_path)
    train.write_text("user_id,image_id,class\n12,bb,bird\n")
    with pytest.raises(InputError, match="class 'bird' is not a whole number"):
        lists.inaturalist(tmp_path)
