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
		{Heading: "Charts"}, {Chart: &Chart{Title: "not drawn"}},
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

`
	if have := write(t, p)["markdown"]; have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}
