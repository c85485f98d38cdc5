//! Which instructions the kernels may use.

/// Instruction set whose kernels run. All give the same bytes; a later one is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, on every processor: the definition.
    Scalar,
    /// 256-bit vectors: x86-64 since 2013.
    Avx2,
    /// AVX-512 with the byte dot product (VNNI, BW, VL): x86-64 servers since 2019.
    Vnni,
}

impl Isa {
    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// Those that this processor has, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [Self::Scalar, Self::Avx2, Self::Vnni].into_iter().filter(|isa| isa.is_available())
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn is_available(self) -> bool {
        self == Self::Scalar
    }
}
