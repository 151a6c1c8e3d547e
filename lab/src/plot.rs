//! A picture of lines and points, as SVG and PNG, with its provenance in the footer. It does not know what is drawn.
//!
//! Text is set in a font that comes with the program: nothing on the machine is asked for one.

use std::sync::Once;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::{Error, Result};

/// How an axis counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// By powers.
    Log,
}

/// One axis: a single unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What is counted, with its unit.
    pub label: String,
    /// How.
    pub scale: Scale,
    /// Ends that the axis has at least; the data widen them.
    pub includes: Vec<f64>,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// In the legend.
    pub label: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
    /// Vertical bars at a point: x, low, high.
    pub bars: Vec<(f64, f64, f64)>,
    /// Points alone, without the line between them.
    pub is_scatter: bool,
}

/// A horizontal line to read others against, such as 1.00×.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// At this y.
    pub y: f64,
    /// What it is.
    pub label: String,
}

/// A picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Horizontal.
    pub x: Axis,
    /// Vertical.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// Lines to read them against.
    pub rules: Vec<Rule>,
    /// Where the figures come from; one line each.
    pub footer: Vec<String>,
}

const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "DejaVu Sans";
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1b, 0x5e, 0x9e),
    RGBColor(0xc7, 0x4a, 0x1c),
    RGBColor(0x2e, 0x7d, 0x32),
    RGBColor(0x7b, 0x3f, 0x9d),
    RGBColor(0x8d, 0x6e, 0x00),
    RGBColor(0x00, 0x79, 0x7a),
];

fn load_font() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        // It can only fail for a font that is not one.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
}

fn drawing<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> Error {
    Error::Plot(error.to_string())
}

impl Chart {
    /// As an SVG document.
    ///
    /// # Errors
    /// No finite point to draw.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&SVGBackend::with_string(&mut text, SIZE).into_drawing_area())?;
        Ok(text)
    }

    /// As a PNG file's bytes.
    ///
    /// # Errors
    /// No finite point to draw.
    pub fn png(&self) -> Result<Vec<u8>> {
        let mut pixels = vec![0; 3 * SIZE.0 as usize * SIZE.1 as usize];
        self.draw(&BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area())?;
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, SIZE.0, SIZE.1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let plot = |e: png::EncodingError| Error::Plot(e.to_string());
        encoder.write_header().and_then(|mut w| w.write_image_data(&pixels)).map_err(plot)?;
        Ok(bytes)
    }

    /// By the ending of a file's name: `.svg` or `.png`.
    ///
    /// # Errors
    /// Another ending; no finite point to draw; the file cannot be written.
    pub fn write(&self, path: &std::path::Path) -> Result<()> {
        let bytes = match path.extension().and_then(|e| e.to_str()) {
            Some("svg") => self.svg()?.into_bytes(),
            Some("png") => self.png()?,
            _ => {
                return Err(Error::invalid(
                    path.display().to_string(),
                    "a name that ends in .svg or .png",
                    "another",
                ));
            }
        };
        std::fs::write(path, bytes).map_err(Error::io(path))
    }

    /// The axis' ends: the data, what it must include, and a little room.
    fn range(axis: &Axis, values: impl Iterator<Item = f64>) -> Result<std::ops::Range<f64>> {
        let is_log = axis.scale == Scale::Log;
        let usable =
            values.chain(axis.includes.iter().copied()).filter(|v| v.is_finite() && (!is_log || *v > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return Err(Error::Plot(format!("{}: nothing to draw", axis.label)));
        }
        if is_log {
            (low, high) = (low / 1.2, high * 1.2);
        } else {
            let room = if high > low { (high - low) * 0.06 } else { high.abs().max(1.0) * 0.1 };
            // An axis that starts at zero keeps its zero.
            low = if low == 0.0 { 0.0 } else { low - room };
            high += room;
        }
        Ok(low..high)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        load_font();
        let points = || self.series.iter().flat_map(|s| s.points.iter());
        let bars = || self.series.iter().flat_map(|s| s.bars.iter());
        let x = Chart::range(&self.x, points().map(|p| p.0).chain(bars().map(|b| b.0)))?;
        let rules = self.rules.iter().map(|r| r.y);
        let y =
            Chart::range(&self.y, points().map(|p| p.1).chain(bars().flat_map(|b| [b.1, b.2])).chain(rules))?;
        area.fill(&WHITE).map_err(drawing)?;
        let lines: Vec<String> = self.footer.iter().flat_map(|text| wrapped(text, 140)).collect();
        let footer_height = 16 * lines.len() as u32 + 10;
        let (main, footer) = area.split_vertically(SIZE.1 - footer_height);
        let small = (FONT, 11).into_font().color(&RGBColor(0x55, 0x55, 0x55));
        for (line, text) in lines.iter().enumerate() {
            footer
                .draw(&Text::new(text.clone(), (16, 2 + 16 * line as i32), small.clone()))
                .map_err(drawing)?;
        }
        match (self.x.scale, self.y.scale) {
            (Scale::Linear, Scale::Linear) => self.chart(&main, x, y),
            (Scale::Log, Scale::Linear) => self.chart(&main, x.log_scale(), y),
            (Scale::Linear, Scale::Log) => self.chart(&main, x, y.log_scale()),
            (Scale::Log, Scale::Log) => self.chart(&main, x.log_scale(), y.log_scale()),
        }?;
        area.present().map_err(drawing)
    }

    fn chart<B, X, Y>(&self, area: &DrawingArea<B, Shift>, x: X, y: Y) -> Result<()>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .label_style((FONT, 12))
            .axis_desc_style((FONT, 13))
            .x_label_formatter(&|v| number(*v))
            .y_label_formatter(&|v| number(*v))
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(0xe4, 0xe4, 0xe4))
            .draw()
            .map_err(drawing)?;
        let (x_ends, _) = (chart.x_range(), ());
        for rule in &self.rules {
            let style = RGBColor(0x33, 0x33, 0x33).stroke_width(1);
            chart
                .draw_series(LineSeries::new([(x_ends.start, rule.y), (x_ends.end, rule.y)], style))
                .map_err(drawing)?
                .label(&rule.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let colour = *colour;
            let points = || series.points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite());
            if !series.is_scatter {
                chart.draw_series(LineSeries::new(points(), colour.stroke_width(2))).map_err(drawing)?;
            }
            for &(x, low, high) in &series.bars {
                chart
                    .draw_series(std::iter::once(PathElement::new(
                        [(x, low), (x, high)],
                        colour.stroke_width(1),
                    )))
                    .map_err(drawing)?;
            }
            let drawn =
                chart.draw_series(points().map(|p| Circle::new(p, 3, colour.filled()))).map_err(drawing)?;
            drawn
                .label(&series.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(0xcc, 0xcc, 0xcc))
            .label_font((FONT, 12))
            .position(SeriesLabelPosition::UpperRight)
            .draw()
            .map_err(drawing)
    }
}

/// A text in lines of at most `width` characters, broken at spaces where there are any.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
            continue;
        }
        if !lines[last].is_empty() {
            lines[last].push(' ');
        }
        lines[last].push_str(word);
    }
    lines
}

/// A number as short as it can be read.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e9 {
        format!("{}G", trimmed(value / 1e9))
    } else if size >= 1e6 {
        format!("{}M", trimmed(value / 1e6))
    } else if size >= 1e4 {
        format!("{}k", trimmed(value / 1e3))
    } else {
        trimmed(value)
    }
}

fn trimmed(value: f64) -> String {
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        3
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart {
            title: "speed".into(),
            x: Axis { label: "depth (tokens)".into(), ..Axis::default() },
            y: Axis { label: "tokens/s".into(), includes: vec![0.0], ..Axis::default() },
            series: vec![Series {
                label: "some model".into(),
                points: vec![(0.0, 10.0), (512.0, 8.0)],
                bars: vec![(0.0, 9.0, 11.0)],
                is_scatter: false,
            }],
            rules: vec![Rule { y: 1.0, label: "1.00×".into() }],
            footer: vec!["machine: some".into(), "run 7".into()],
        }
    }

    #[test]
    fn an_svg_has_title_axes_legend_rule_and_footer() {
        let svg = chart().svg().unwrap();
        for text in ["speed", "depth (tokens)", "tokens/s", "some model", "1.00×", "machine: some", "run 7"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.trim_start().starts_with("<svg"));
    }

    #[test]
    fn a_png_is_one_and_has_ink() {
        let bytes = chart().png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), SIZE);
        let white = pixels.iter().filter(|&&p| p == 255).count();
        assert!(white > pixels.len() / 2 && white < pixels.len() - 10_000, "{white}");
        // The footer's text is there although no font was looked for.
        let last_lines = &pixels[pixels.len() - 3 * SIZE.0 as usize * 40..];
        assert!(last_lines.iter().any(|&p| p < 128));
    }

    #[test]
    fn logarithmic_axes_leave_out_what_has_no_logarithm() {
        let mut chart = chart();
        chart.x.scale = Scale::Log;
        chart.svg().unwrap();
        chart.y.scale = Scale::Log;
        chart.y.includes.clear();
        chart.png().unwrap();
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        let empty = Chart { x: Axis { label: "depth".into(), ..Axis::default() }, ..Chart::default() };
        assert!(empty.svg().unwrap_err().to_string().contains("depth"));
    }

    #[test]
    fn long_footers_are_broken_at_spaces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbroken words", 3), ["unbroken", "words"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 1.05, 512.0, 16384.0, 2.5e9].map(number), ["0", "1.05", "512", "16.4k", "2.5G"]);
    }
}
