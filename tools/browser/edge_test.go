package browser

import (
	"testing"

	"github.com/myriad-go/myriad/internal/page"
)

// TestLastLabel has an axis end with a wide label, which is not cut at the canvas's edge:
// the last column of pixels below the axis is empty.
func TestLastLabel(t *testing.T) {
	var parts []page.Part
	for id, x := range map[string][]float64{"short": {100, 1000}, "long": {100, 1000, 500_000}} {
		parts = append(parts, page.Part{Chart: &page.Chart{
			ID: id, Title: "Throughput",
			X: page.Axis{Label: "connections", Log: true}, Y: page.Axis{Label: "a second"},
			Series: []page.Series{{Name: "a", X: x, Y: x, Points: true}},
		}})
	}
	b := open(t, saved(t, &page.Page{Title: "Edge", Sections: []page.Section{{ID: "charts", Title: "Charts", Parts: parts}}}))
	const cut = `[...document.querySelectorAll("figure canvas")].filter((canvas) => {
		const pixels = canvas.getContext("2d").getImageData(canvas.width - 1, canvas.height / 2, 1, canvas.height / 2).data;
		return pixels.some((v, i) => i % 4 === 3 && v > 0);
	}).map((canvas) => canvas.closest("figure").id)`
	if have := eval[[]string](b, cut); len(have) > 0 {
		t.Errorf("the last label is cut in %q", have)
	}
}
