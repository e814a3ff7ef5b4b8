//! The steps in a `preprocessor_config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use candle_blocks_media::pictures::{
    Backend, Filter, Image, Order, Pixels, Preprocessing, Size, TargetSize, TransparentColor,
};
use candle_core::{DType, Device, Tensor};
use serde::Deserialize;

use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};
use crate::pictures::processor_class::{CLASSES, ProcessorClass};

const FILE: &str = "preprocessor_config.json";
/// A file with several processors, whose key `image_processor` comes before the other file.
const JOINT_FILE: &str = "processor_config.json";
/// Settings of other processors for changes to pixels. A file with one of them is refused.
const CHANGES: [&str; 5] = [
    "rescale_offset",
    "offset",
    "do_flip_channel_order",
    "do_grayscale",
    "do_color_quantize",
];

/// Makes a model's `pixel_values` from images, by the `preprocessor_config.json` in its folder: resizes, crops, rescales and
/// normalizes as the image processor of transformers that the file names. Bytes after resizing are the same in every bit.
///
/// ```no_run
/// use candle_blocks::{Checkpoint, ModelInput, Precision, Weights, pictures::{Image, ImageProcessor}};
/// let model = Checkpoint::open("vit-base-patch16-224")?.load(Weights::Packed(Precision::F32)).model()?;
/// let pixels = ImageProcessor::open("vit-base-patch16-224")?.pixels(&[Image::open("cat.jpg")?])?; // [1, 3, 224, 224]
/// println!("{:?}", model.forward(&ModelInput::pixels(&pixels))?.logits);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    steps: Preprocessing,
    class: &'static str,
}

/// A size in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenSize {
    Edge(usize),
    Edges([usize; 2]),
    Named(BTreeMap<String, Option<usize>>),
}

impl ImageProcessor {
    /// Reads the `preprocessor_config.json` in a checkpoint's folder, or the `image_processor` in its `processor_config.json`.
    ///
    /// # Errors
    /// If there is neither, the processor is unknown, or a key has an unusable value.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        let joint = ConfigJson::open_named(&directory.join(JOINT_FILE))?;
        let joint = joint.map(|json| json.section(&["image_processor"]));
        let json = match joint.transpose()?.flatten() {
            Some(json) => json,
            None => ConfigJson::open(&directory.join(FILE))?,
        };
        let class = class_of(&json, directory)?;
        for key in CHANGES {
            json.only(key, &[false.into()])?;
        }
        Ok(Self {
            steps: steps(&json, class)?,
            class: class.name,
        })
    }

    /// Selects the library whose results resizing and normalization have; by default torchvision's, as in transformers.
    ///
    /// # Errors
    /// If the processor exists with torchvision alone.
    pub fn with_backend(mut self, backend: Backend) -> Result<Self> {
        if backend == Backend::Pil && self.steps.order == Order::RescaleFirst {
            let reason = format!(
                "transformers' {} exists with torchvision alone; leave pil out",
                self.class
            );
            return Err(Error::input("backend", reason));
        }
        self.steps.backend = backend;
        Ok(self)
    }

    /// Returns the name of the image processor in transformers.
    pub fn class(&self) -> &str {
        self.class
    }

    /// Makes `pixel_values` `[batch, 3, height, width]`, f32 on the CPU.
    ///
    /// # Errors
    /// If there is no image, one cannot be resized, or they have different sizes afterwards: a processor that keeps proportions
    /// and does not crop takes one image at a time.
    pub fn pixels(&self, images: &[Image]) -> Result<Tensor> {
        let mut all = Vec::new();
        let mut size = None;
        for (i, image) in images.iter().enumerate() {
            let pixels = self.of_one(i, image)?;
            let first = *size.get_or_insert(pixels.size);
            if first != pixels.size {
                let reason = format!(
                    "has {} x {} pixels after preprocessing, the first one {} x {}; give one image at a time",
                    pixels.size.width, pixels.size.height, first.width, first.height
                );
                return Err(Error::input(format!("image {i}"), reason));
            }
            all.extend(pixels.values);
        }
        let Some(size) = size else {
            return Err(Error::input("images", "missing, expected at least one"));
        };
        let shape = (images.len(), 3, size.height, size.width);
        Ok(Tensor::from_vec(all, shape, &Device::Cpu)?)
    }

    /// Returns the values of the image with this index.
    pub(super) fn of_one(&self, index: usize, image: &Image) -> Result<Pixels> {
        let pixels = self.steps.pixels(image);
        pixels.map_err(|error| match error {
            Error::InvalidInput { input, reason } if input == "image" => {
                Error::input(format!("image {index}"), reason)
            }
            other => other,
        })
    }

    /// Makes `pixel_values` like [`Self::pixels`] from bytes `[batch, height, width, 3]`, red, green and blue.
    ///
    /// # Errors
    /// If the tensor has another dtype or shape, or as in [`Self::pixels`].
    pub fn pixels_of_bytes(&self, images: &Tensor) -> Result<Tensor> {
        let (&[n, height, width, 3], DType::U8) = (images.dims(), images.dtype()) else {
            let reason = format!(
                "{:?} of {:?}, expected bytes (U8) of [batch, height, width, 3]",
                images.dims(),
                images.dtype()
            );
            return Err(Error::input("image", reason));
        };
        let bytes: Vec<u8> = images.flatten_all()?.to_vec1()?;
        let mut all = Vec::with_capacity(n);
        for bytes in bytes.chunks(3 * height * width) {
            all.push(Image::new(width, height, bytes.to_vec())?);
        }
        self.pixels(&all)
    }
}

/// Returns the processor that a file names, or else the one of the model's type.
fn class_of(json: &ConfigJson, directory: &Path) -> Result<&'static ProcessorClass> {
    const KEY: &str = "image_processor_type";
    const OLD_KEY: &str = "feature_extractor_type";
    let refused = |key: &str, name: &str| {
        let known = CLASSES.map(|class| class.name).join(", ");
        let reason = format!("found {name:?}, expected one of {known}");
        Err(json.error(&[key], reason))
    };
    let named = match json.text(&[KEY])? {
        Some(name) => Some((KEY, name)),
        None => json
            .text(&[OLD_KEY])?
            .map(|name| (OLD_KEY, name.replace("FeatureExtractor", "ImageProcessor"))),
    };
    if let Some((key, name)) = named {
        let base = ["Fast", "Pil"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let base = base.unwrap_or(&name);
        let found = CLASSES.iter().find(|class| class.name == base);
        return found.map_or_else(|| refused(key, base), Ok);
    }
    let config = ConfigJson::open_named(&directory.join("config.json"))?;
    let model_type = match &config {
        Some(config) => config.text(&["model_type"])?.unwrap_or_default(),
        None => String::new(),
    };
    let is_of = |class: &&ProcessorClass| class.model_types.contains(&model_type.as_str());
    match CLASSES.iter().find(is_of) {
        Some(class) => Ok(class),
        None => {
            let reason = format!(
                "missing, and config.json has the model_type {model_type:?}; write the name of an image processor of \
                 transformers here"
            );
            Err(json.error(&[KEY], reason))
        }
    }
}

/// Reads the steps.
fn steps(json: &ConfigJson, class: &ProcessorClass) -> Result<Preprocessing> {
    let resize = match json.flag(&["do_resize"], true)? {
        true => Some((target_size(json, class)?, filter(json, class)?)),
        false => None,
    };
    let crop = match json.flag(&["do_center_crop"], class.crop.1)? {
        true => Some(rectangle(json, "crop_size")?.unwrap_or(class.crop.0)),
        false => None,
    };
    if crop.is_some() && class.order == Order::RescaleFirst {
        return Err(json.error(
            &["do_center_crop"],
            format!("is not supported for {}", class.name),
        ));
    }
    let pads = class.order == Order::ResizeFirst && class.name != "BeitImageProcessor";
    let pad = match json.flag(&["do_pad"], false)? && pads {
        true => match rectangle(json, "pad_size")? {
            Some(size) => Some(size),
            None => return Err(json.error(&["pad_size"], "missing, expected height and width")),
        },
        false => None,
    };
    let rescale = match json.flag(&["do_rescale"], true)? {
        true => {
            let factor = json.number(&["rescale_factor"], 1.0 / 255.0)?;
            Some(json.positive(factor, &["rescale_factor"])?)
        }
        false => None,
    };
    let normalize = match json.flag(&["do_normalize"], true)? {
        true => {
            let [mean, deviation] = class.normalization;
            let mean = per_channel(json, "image_mean", mean)?;
            let deviation = per_channel(json, "image_std", deviation)?;
            if !deviation.iter().all(|x| *x as f32 > 0.0) {
                let reason = format!("found {deviation:?}, expected 3 values above 0");
                return Err(json.error(&["image_std"], reason));
            }
            Some((mean, deviation))
        }
        false => None,
    };
    Ok(Preprocessing {
        backend: Backend::default(),
        order: class.order,
        transparent: match json.flag(&["do_convert_rgb"], class.converts_to_rgb)? {
            true => TransparentColor::White,
            false => TransparentColor::Kept,
        },
        resize,
        crop,
        pad,
        rescale,
        normalize,
    })
}

/// Reads a value for each channel, or one for all.
fn per_channel(json: &ConfigJson, key: &str, default: [f64; 3]) -> Result<[f64; 3]> {
    if json.at(key).is_some_and(|value| value.is_number()) {
        return Ok([json.number(&[key], 0.0)?; 3]);
    }
    let Some(values) = json.numbers(&[key])? else {
        return Ok(default);
    };
    let n = values.len();
    <[f64; 3]>::try_from(values).map_err(|_| {
        json.error(
            &[key],
            format!("found {n} values, expected 3, one for each channel"),
        )
    })
}

/// Reads the filter of resizing.
fn filter(json: &ConfigJson, class: &ProcessorClass) -> Result<Filter> {
    let Some(value) = json.at("resample").filter(|value| !value.is_null()) else {
        return Ok(class.filter);
    };
    let found = value.as_u64().and_then(Filter::numbered);
    found.ok_or_else(|| {
        let reason = format!("found {value}, expected the number of a filter of PIL, 0 to 5");
        json.error(&["resample"], reason)
    })
}

/// Reads a size by `key`; `None` if absent or null.
fn written(json: &ConfigJson, key: &str) -> Result<Option<WrittenSize>> {
    let size = json.parsed::<WrittenSize>(key);
    let size = size.map_err(|_| {
        let reason = "expected a number, [height, width], or an object with \"height\" and \"width\" or \"shortest_edge\"";
        json.error(&[key], reason)
    })?;
    let is_allowed = |edge: usize| (1..=MAX_EDGE).contains(&edge);
    let edges: Vec<usize> = match &size {
        None => Vec::new(),
        Some(WrittenSize::Edge(edge)) => vec![*edge],
        Some(WrittenSize::Edges(edges)) => edges.to_vec(),
        Some(WrittenSize::Named(named)) => named.values().copied().flatten().collect(),
    };
    match edges.iter().find(|&&edge| !is_allowed(edge)) {
        None => Ok(size),
        Some(edge) => Err(json.error(
            &[key],
            format!("found {edge}, expected 1 to {MAX_EDGE} pixels"),
        )),
    }
}

/// The longest edge that a file may ask for. Models have up to a few thousand pixels.
const MAX_EDGE: usize = 16384;

/// Reads height and width by `key`, which a single number gives both; `None` if absent or null.
fn rectangle(json: &ConfigJson, key: &str) -> Result<Option<Size>> {
    Ok(match written(json, key)? {
        None => None,
        Some(WrittenSize::Edge(edge)) => Some(Size {
            height: edge,
            width: edge,
        }),
        Some(WrittenSize::Edges([height, width])) => Some(Size { height, width }),
        Some(WrittenSize::Named(named)) => {
            let of = |name: &str| named.get(name).copied().flatten();
            match (of("height"), of("width")) {
                (Some(height), Some(width)) => Some(Size { height, width }),
                _ => return Err(json.error(&[key], "expected \"height\" and \"width\"")),
            }
        }
    })
}

/// Reads the size after resizing.
fn target_size(json: &ConfigJson, class: &ProcessorClass) -> Result<TargetSize> {
    const KEY: &str = "size";
    if let TargetSize::Patches { edge, most } = class.size {
        return Ok(TargetSize::Patches {
            edge: json.size_or(&["patch_size"], edge)?,
            most: json.size_or(&["max_num_patches"], most)?,
        });
    }
    let named = match written(json, KEY)? {
        None => return Ok(class.size),
        Some(WrittenSize::Edge(edge)) => {
            return Ok(match json.flag(&["default_to_square"], class.is_square)? {
                true => TargetSize::Fixed(Size {
                    height: edge,
                    width: edge,
                }),
                false => TargetSize::ShortestEdge(edge),
            });
        }
        Some(WrittenSize::Edges([height, width])) => {
            return Ok(TargetSize::Fixed(Size { height, width }));
        }
        Some(WrittenSize::Named(named)) => named,
    };
    let edges: Vec<(&str, usize)> = named
        .iter()
        .filter_map(|(name, edge)| Some((name.as_str(), (*edge)?)))
        .collect();
    match edges[..] {
        [("height", height), ("width", width)] => Ok(TargetSize::Fixed(Size { height, width })),
        [("shortest_edge", edge)] => Ok(TargetSize::ShortestEdge(edge)),
        [("longest_edge", longest), ("shortest_edge", edge)] => {
            Ok(TargetSize::Edges(edge, longest))
        }
        [("max_height", height), ("max_width", width)] => {
            Ok(TargetSize::Within(Size { height, width }))
        }
        _ => {
            let found: Vec<&str> = edges.iter().map(|(name, _)| *name).collect();
            let reason = format!(
                "found {found:?}, expected height and width, shortest_edge (with longest_edge or without), or max_height and \
                 max_width"
            );
            Err(json.error(&[KEY], reason))
        }
    }
}
