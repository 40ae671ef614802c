package page

import (
	"bytes"
	"strings"
	"testing"
)

// TestApplication has a page with a body of its own, whose policy knows its script and style.
func TestApplication(t *testing.T) {
	a := Application{Title: "A <title>", Body: `<p id="own">1 &lt; 2</p>`, Style: "#own { color: red }", Script: "window.mine = 1 < 2;"}
	var b bytes.Buffer
	if err := a.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	for _, want := range []string{"<title>A &lt;title&gt;</title>", a.Body, a.Style + "</style>", a.Script + "</script>", "connect-src &#39;self&#39;", "_theme"} {
		if !strings.Contains(html, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(html, "uPlot") || strings.Contains(html, "<h1>") {
		t.Error("it has what charts, or other pages, need")
	}
	knowsItsElements(t, html)
}
