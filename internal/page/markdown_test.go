package page

import (
	"testing"
)

func TestMarkdown(t *testing.T) {
	tab := &Table{Caption: "a_b", Lines: [][]string{{"name", "rate", "note"}}}
	tab.Add("x|y", "1", "so\nso")
	tab.SetTone(1, Bad)
	p := &Page{Title: "# one", Lead: "1. lead", Sections: []Section{{ID: "s", Title: "two", Parts: []Part{
		{Remarks: []Remark{{Good, "met"}, {Plain, "- said"}}},
		{Table: tab},
		{Chart: &Chart{ID: "few", Title: "few", Y: Axis{Label: "memory", Unit: Bytes}, X: Axis{Label: "n"},
			Series: []Series{{Name: "a", X: []float64{1, 2}, Y: []float64{1024, 2048}}, {Name: "b", X: []float64{2, 3}, Y: []float64{0, 1}}}}},
		{Chart: &Chart{ID: "many", Title: "many", Y: Axis{Label: "y"}, X: Axis{Label: "x"},
			Series: []Series{{X: make([]float64, fewPoints+1), Y: make([]float64, fewPoints+1)}, {X: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, Y: make([]float64, 12)}}}},
	}}}}
	const want = `# \# one

1\. lead

## two

- ✓ **good**: met
- \- said

**a\_b**

| name | rate | note |
| :-- | --: | :-- |
| x\|y | ✗ 1 | so so |

**few: memory**

| n | a | b |
| :-- | --: | --: |
| 1 | 1 KiB |  |
| 2 | 2 KiB | 0 B |
| 3 |  | 1 B |

**many**: the page in HTML draws this chart, y by x, in 2 curves.

`
	if have := write(t, p)["markdown"]; have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}
