"""Natural-like images and noise, for the tests of denoisers."""

import torch


def scene(channels=3, side=48, seed=0):
    """A natural-like image: discs and a slope of light with sharp edges, and a texture whose spectrum falls as 1/f."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    image = (0.5 + 0.2 * x).expand(channels, side, side).clone()
    for _ in range(6):
        cx, cy, r = (
            torch.rand(3, generator=generator) * torch.tensor([2.0, 2.0, 0.5]) - torch.tensor([1.0, 1.0, -0.15])
        ).tolist()
        inside = (x - cx) ** 2 + (y - cy) ** 2 < r**2
        image[:, inside] = torch.rand(channels, 1, generator=generator)
    f = torch.fft.fftfreq(side)
    falling = 1 / (f[:, None] ** 2 + f**2).sqrt().clamp(min=1 / side)
    texture = torch.fft.ifft2(torch.fft.fft2(torch.randn(side, side, generator=generator)) * falling).real
    return (image + 0.03 * texture / texture.std()).clamp(0, 1)


def noisy(images, sigma, seed=0):
    return images + sigma * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))


def psnr(images, truth):
    return float((-10 * (images.detach() - truth).square().mean(dim=(1, 2, 3)).log10()).mean())
