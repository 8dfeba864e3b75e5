"""Evidence that others published: logs, votes and a network, with source, licence, citation and SHA-256 sums.

The files are fetched from their publishers at a fixed commit; none of them is part of smoothcert.
"""

from __future__ import annotations

from dataclasses import dataclass

from smoothcert.data.known import Download

ATTRIBUTION_FILE = "ATTRIBUTION.txt"
"""Written beside the fetched files."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Published files that are evidence rather than a data set to certify."""

    name: str
    summary: str
    repository: str
    commit: str
    folder: str
    """Folder of the repository in which the paths of `downloads` start; empty for its root."""
    licence: str
    citation: str
    downloads: tuple[Download, ...]

    @property
    def url(self) -> str:
        """Address of the files at the commit."""
        path = "/".join(filter(None, (self.repository, self.commit, self.folder)))
        return f"https://raw.githubusercontent.com/{path}"

    @property
    def attribution(self) -> str:
        """What the files are, where they come from, under which licence, and what to cite: one line each."""
        return (
            f"{self.name}: {self.summary}\n"
            f"source: https://github.com/{self.repository}, commit {self.commit}\n"
            f"licence: {self.licence}\n"
            f"cite: {self.citation}\n"
        )


_COHEN = (
    "J. M. Cohen, E. Rosenfeld, J. Z. Kolter. Certified Adversarial Robustness via Randomized Smoothing. ICML 2019. "
    "arXiv:1902.02918"
)

COHEN2019 = Publication(
    "cohen2019",
    "certification and prediction logs of Cohen et al. 2019 (ImageNet, CIFAR-10)",
    "locuslab/smoothing",
    "78a4d949e4f627d000a78908e001f8ca66c92943",
    "data",
    "the publisher states none with the logs; see the repository",
    _COHEN,
    (
        Download(
            "certify/cifar10/resnet110/noise_0.12/test/sigma_0.12",
            16_019,
            "a1587fd0f8bdbbe0a75baf2d8a10ffc29f920dbdab2f6d614c0b0af97595c7ee",
        ),
        Download(
            "certify/cifar10/resnet110/noise_0.12/test/sigma_0.50",
            15_860,
            "8e116cded3659fdf6b5e46e7523d197a703795746fcfe6eeb6760be2d5debcf1",
        ),
        Download(
            "certify/cifar10/resnet110/noise_0.25/test/sigma_0.25",
            10_953,
            "6b4e0247f027b2dc3ad0cef43cb6d463e67c15fceb9a3f94a62e02b209b3fed3",
        ),
        Download(
            "certify/cifar10/resnet110/noise_0.25/test/sigma_0.50",
            15_853,
            "20942a522ff93534a4f1603a784a8bfcf07f3a339209aa4eea7b5b6b8094151e",
        ),
        Download(
            "certify/cifar10/resnet110/noise_0.50/test/sigma_0.50",
            10_770,
            "71a062b786eab25779290a7a5c7670aad18590fd6940b1fb240db50f4e66e3b7",
        ),
        Download(
            "certify/cifar10/resnet110/noise_1.00/test/sigma_0.50",
            15_735,
            "651ef44f417bcf61ffb79be68be9816dd10a598349b5677a38380917e3b55b2c",
        ),
        Download(
            "certify/cifar10/resnet110/noise_1.00/test/sigma_1.00",
            10_701,
            "a1d3f7731901cb7116f62993f7d79765d16191151a5c8a9a234dde7c9b8f3f82",
        ),
        Download(
            "certify/imagenet/resnet50/noise_0.25/test/sigma_0.25",
            15_509,
            "6a8b62ec0315e18f3e1a601ad1920f3f32e0231171bfe550d000b9af39df53c0",
        ),
        Download(
            "certify/imagenet/resnet50/noise_0.25/test/sigma_0.50",
            18_041,
            "d7a562e71d8c2fee16e16574ca0aee9a78bfb66bfe82bc590e1df3dab47f9e46",
        ),
        Download(
            "certify/imagenet/resnet50/noise_0.50/test/sigma_0.50",
            17_851,
            "f099668de3d463255eab31a3541e06ae767901ba5d95bce62187e2e20caaad61",
        ),
        Download(
            "certify/imagenet/resnet50/noise_0.50/train/sigma_0.50",
            18_995,
            "f0405b79523ec80a5255d421ec3e76d993330b0afc5c65d6f2cda97a53c4cddf",
        ),
        Download(
            "certify/imagenet/resnet50/noise_1.00/test/sigma_0.50",
            18_010,
            "75bf30eff9b637096485584af9aae34ee7d33557907fc70e1f965e7836ecf0e0",
        ),
        Download(
            "certify/imagenet/resnet50/noise_1.00/test/sigma_1.00",
            17_668,
            "17f415e64eaccf320e6d1e3fdcf2d7d1cbc466af7e73d6119e406c39ef6d7f10",
        ),
        Download(
            "predict/imagenet/resnet50/noise_0.25/test/N_100",
            15_268,
            "232bbc7c10772d7fa80e8f5c09b46042a49958642c3b80f2253eaed7053cd0e9",
        ),
        Download(
            "predict/imagenet/resnet50/noise_0.25/test/N_1000",
            15_296,
            "445b78e92b25fff78303e6874e6ebddbf85bc5ebe5bb1355d73fe9f10ffbdca2",
        ),
        Download(
            "predict/imagenet/resnet50/noise_0.25/test/N_10000",
            15_307,
            "ed6fb7339d478483c163c6562f3130703a4812ee3381aa4c3c854cc052abfa14",
        ),
        Download(
            "predict/imagenet/resnet50/noise_0.25/test/N_100000",
            15_310,
            "dd3a0f2713c9c34da4194cac7fd0e1501fa76114680804df29a7e5721a2665e7",
        ),
    ),
)
COHEN2019_VOTES = Publication(
    "cohen2019-votes",
    "100,000 votes on each CIFAR-10 test image by the networks of Cohen et al. 2019, sampled by Bhardwaj et al. 2024",
    "FireShadow05/accelerated_smoothing",
    "f56c7bff7084bd38ecc96cfbe49ea205cf460271",
    "",
    "MIT, Copyright (c) 2024 Devansh Bhardwaj",
    "D. Bhardwaj, K. Kaushik, S. Gupta. Accelerated Smoothing: A Scalable Approach to Randomized Smoothing. 2024. "
    f"arXiv:2402.07498; networks: {_COHEN}",
    (
        Download(
            "our_sampled_data/data_0.12/test/smooth_outs_100000.pth",
            401_235,
            "462bf46da9691d048afb7706d3375a5e1b587f006cb97ee11d7f65a4dbf2f427",
        ),
        Download(
            "our_sampled_data/data_0.25/test/smooth_outs_100000.pth",
            401_235,
            "f4c944478b447507471fbbe22c0baed8066ee8896e0b322cd9108d8423a5f584",
        ),
        Download(
            "our_sampled_data/data_0.5/test/smooth_outs_100000.pth",
            401_235,
            "fae9aa70e700df3a2f2f1c317cf70efcaf99ad22e357712c7b463c780df56bd5",
        ),
        Download(
            "our_sampled_data/data_1.0/test/smooth_outs_100000.pth",
            401_235,
            "d047e219e79254efac17d4a534483db7d6d9487441413029a8367eb25ea0afe2",
        ),
    ),
)

WONG2018 = Publication(
    "wong2018",
    "CIFAR-10 network of Wong et al. 2018, trained for L2 perturbations of 36/255 (a cascade of two wong-cnn)",
    "locuslab/convex_adversarial",
    "2cd8149249b9e90383af10fc7e9b9fe90166813e",
    "models_scaled_l2",
    "MIT, Copyright (c) 2018 Eric Wong",
    "E. Wong, F. Schmidt, J. H. Metzen, J. Z. Kolter. Scaling Provable Adversarial Defenses. NeurIPS 2018. "
    "arXiv:1805.12514",
    (
        Download(
            "cifar_small_36px.pth",
            1_830_278,
            "d99894f1fe2866dd3509d3b2a69e16110e58c8d04bd696a070ad6e23d22f11b7",
        ),
    ),
)

PUBLICATIONS: dict[str, Publication] = {one.name: one for one in (COHEN2019, COHEN2019_VOTES, WONG2018)}
