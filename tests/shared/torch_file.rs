//! Files as `torch.save` writes them, made by hand.

use safetensors::Dtype;

/// The first byte of an entry's data is a multiple of this.
const ALIGNMENT: usize = 64;

/// Returns a zip archive with uncompressed entries.
pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let local = bytes.len();
        let padding = (ALIGNMENT - (local + 30 + name.len()) % ALIGNMENT) % ALIGNMENT;
        bytes.extend(record(name, data.len(), padding, None));
        bytes.extend(data.iter());
        directory.extend(record(name, data.len(), 0, Some(local)));
    }
    ended(bytes, &directory, entries.len())
}

/// The entries, followed by the directory and the end record.
pub fn ended(mut bytes: Vec<u8>, directory: &[u8], n: usize) -> Vec<u8> {
    let at = bytes.len() as u32;
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([(n as u16).to_le_bytes(), (n as u16).to_le_bytes()].concat());
    bytes.extend([(directory.len() as u32).to_le_bytes(), at.to_le_bytes()].concat());
    bytes.extend([0, 0]);
    bytes
}

/// An entry's own header, or its record in the directory, which says where that is.
pub fn record(name: &str, n_bytes: usize, padding: usize, local: Option<usize>) -> Vec<u8> {
    let mut bytes = match local {
        None => b"PK\x03\x04\0\0".to_vec(),
        Some(_) => b"PK\x01\x02\0\0\0\0".to_vec(),
    };
    bytes.extend([0; 12]); // flags, method, time, CRC
    bytes.extend((n_bytes as u32).to_le_bytes().repeat(2));
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend((padding as u16).to_le_bytes());
    if let Some(local) = local {
        bytes.extend([0; 10]);
        bytes.extend((local as u32).to_le_bytes());
    }
    bytes.extend(name.as_bytes());
    bytes.resize(bytes.len() + padding, 0);
    bytes
}

/// A view of storage 0.
pub struct View<'a> {
    pub name: &'a str,
    pub first: usize,
    pub shape: &'a [usize],
    pub strides: &'a [usize],
}

/// Returns `data.pkl` with a dict of tensors, which share one storage with `n` elements.
pub fn pickle(dtype: Dtype, n: usize, views: &[View]) -> Vec<u8> {
    let mut bytes = b"\x80\x02}(".to_vec();
    for view in views {
        text(&mut bytes, view.name);
        bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut bytes, "storage");
        let class = match dtype {
            Dtype::F32 => "Float",
            Dtype::F16 => "Half",
            Dtype::BF16 => "BFloat16",
            Dtype::U8 => "Byte",
            other => panic!("{other:?}"),
        };
        bytes.extend(format!("ctorch\n{class}Storage\n").as_bytes());
        text(&mut bytes, "0");
        text(&mut bytes, "cpu");
        int(&mut bytes, n);
        bytes.extend(b"tQ");
        int(&mut bytes, view.first);
        for sizes in [view.shape, view.strides] {
            bytes.push(b'(');
            sizes.iter().for_each(|&size| int(&mut bytes, size));
            bytes.push(b't');
        }
        bytes.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    bytes.extend(b"u.");
    bytes
}

/// Returns a file with tensors that are consecutive in one storage.
pub fn torch_file(dtype: Dtype, views: &[View], data: &[u8]) -> Vec<u8> {
    let n = data.len() * 8 / dtype.bitsize();
    let pickle = pickle(dtype, n, views);
    zip(&[("m/data.pkl", &pickle), ("m/data/0", data)])
}

pub fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(b'X');
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

pub fn int(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend(b"\x8a\x08");
    bytes.extend((n as u64).to_le_bytes());
}
