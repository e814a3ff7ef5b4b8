//! The image processors of transformers, with their defaults.

use candle_blocks_media::pictures::{Filter, Order, Size, TargetSize};

/// One of transformers' image processors.
#[derive(Debug)]
pub(super) struct ProcessorClass {
    /// Its name.
    pub name: &'static str,
    /// The types of models that have it, for files that name no processor.
    pub model_types: &'static [&'static str],
    pub size: TargetSize,
    /// A size that is one number means a square, not the shortest edge.
    pub is_square: bool,
    pub filter: Filter,
    /// The size of the window that is cut from the middle, and if it is cut unless a file says otherwise.
    pub crop: (Size, bool),
    /// The mean and standard deviation of each channel.
    pub normalization: [[f64; 3]; 2],
    pub order: Order,
    /// `do_convert_rgb` unless a file says otherwise.
    pub converts_to_rgb: bool,
}

const SQUARE: Size = Size {
    height: 224,
    width: 224,
};
const HALVES: [[f64; 3]; 2] = [[0.5; 3]; 2];
const IMAGENET: [[f64; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];
const CLIP: [[f64; 3]; 2] = [
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
];

const CLIP_PROCESSOR: ProcessorClass = ProcessorClass {
    name: "CLIPImageProcessor",
    model_types: &["clip", "clip_vision_model", "metaclip_2"],
    size: TargetSize::ShortestEdge(224),
    is_square: false,
    filter: Filter::Bicubic,
    crop: (SQUARE, true),
    normalization: CLIP,
    converts_to_rgb: true,
    ..VIT
};

const VIT: ProcessorClass = ProcessorClass {
    name: "ViTImageProcessor",
    model_types: &["vit", "vit_mae", "vit_msn", "ijepa"],
    size: TargetSize::Fixed(SQUARE),
    is_square: true,
    filter: Filter::Bilinear,
    crop: (SQUARE, false),
    normalization: HALVES,
    order: Order::ResizeFirst,
    converts_to_rgb: false,
};

/// The processors whose steps are read
/// (`models/*/image_processing_*.py` in <https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers>).
pub(super) const CLASSES: [ProcessorClass; 8] = [
    VIT,
    ProcessorClass {
        name: "DeiTImageProcessor",
        model_types: &["deit"],
        size: TargetSize::Fixed(Size {
            height: 256,
            width: 256,
        }),
        filter: Filter::Bicubic,
        crop: (SQUARE, true),
        ..VIT
    },
    ProcessorClass {
        name: "BeitImageProcessor",
        model_types: &["beit"],
        filter: Filter::Bicubic,
        ..VIT
    },
    ProcessorClass {
        name: "BitImageProcessor",
        model_types: &["dinov2", "dinov2_with_registers"],
        ..CLIP_PROCESSOR
    },
    CLIP_PROCESSOR,
    ProcessorClass {
        name: "SiglipImageProcessor",
        model_types: &["siglip", "siglip_vision_model"],
        is_square: false,
        filter: Filter::Bicubic,
        converts_to_rgb: true,
        ..VIT
    },
    ProcessorClass {
        name: "Siglip2ImageProcessor",
        model_types: &["siglip2", "siglip2_vision_model"],
        size: TargetSize::Patches {
            edge: 16,
            most: 256,
        },
        ..VIT
    },
    ProcessorClass {
        name: "DINOv3ViTImageProcessor",
        model_types: &["dinov3_vit"],
        normalization: IMAGENET,
        order: Order::RescaleFirst,
        ..VIT
    },
];
