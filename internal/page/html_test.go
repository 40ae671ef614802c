package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func renderHTMLForms(t testing.TB, p *Page) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, f := range map[string]func(*bytes.Buffer) error{
		"html":   func(b *bytes.Buffer) error { return p.WriteHTML(b) },
		"update": func(b *bytes.Buffer) error { return p.WriteUpdate(b) },
	} {
		var out bytes.Buffer
		if err := f(&out); err != nil {
			t.Fatal(name, err)
		}
		all[name] = out.String()
	}
	return all
}

func TestEverythingIsWritten(t *testing.T) {
	for name, have := range renderHTMLForms(t, newSamplePage("word")) {
		for _, want := range []string{
			"word title", "word lead", "word figure", "word large", "word fact", "word value", "word one", "word paragraph", "word heading",
			"word table", "1,234", "✗", "word few", "word many", "word note",
		} {
			if !strings.Contains(have, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
		if name == "update" && (strings.Contains(have, "<style") || strings.Contains(have, "uPlot")) {
			t.Error("an update brings the style or the script")
		}
	}
}

// TestContentSecurityPolicy checks that the policy contains the hashes of the page's elements, without
// which a browser runs nothing.
func TestContentSecurityPolicy(t *testing.T) {
	p := newSamplePage("word")
	html := renderHTMLForms(t, p)["html"]
	checkPolicyHashes(t, html)
	const asks, asksNobody = "connect-src &#39;self&#39;", "connect-src &#39;none&#39;"
	if !strings.Contains(html, asks) {
		t.Error("a live page may not ask its server")
	}
	p.Live = nil
	if html = renderHTMLForms(t, p)["html"]; !strings.Contains(html, asksNobody) || strings.Contains(html, asks) {
		t.Error("a page that is not live may ask somebody")
	}
}

func checkPolicyHashes(t *testing.T, html string) {
	t.Helper()
	for _, name := range []string{"script", "style"} {
		element := regexp.MustCompile(`(?s)<`+name+`>(.*?)</`+name+`>`).FindAllStringSubmatch(html, -1)
		if len(element) != 1 {
			t.Fatalf("%d elements %s", len(element), name)
		}
		sum := sha256.Sum256([]byte(element[0][1]))
		want := name + "-src &#39;sha256-" + strings.ReplaceAll(base64.StdEncoding.EncodeToString(sum[:]), "+", "&#43;") + "&#39;;"
		if !strings.Contains(html, want) {
			t.Errorf("the policy lacks %s", want)
		}
	}
}

func TestLiveInterval(t *testing.T) {
	for _, c := range []struct{ have, want time.Duration }{{0, 2 * time.Second}, {time.Nanosecond, 100 * time.Millisecond}, {time.Minute, time.Minute}} {
		p := &Page{Live: &Live{URL: "x", Every: c.have}}
		want := fmt.Sprintf(`data-every="%d"`, c.want.Milliseconds())
		if !strings.Contains(renderHTMLForms(t, p)["html"], want) {
			t.Errorf("%v: no %s", c.have, want)
		}
	}
}

var dataElement = regexp.MustCompile(`(?s)<script type="application/json">(.*?)</script>`)

// hostile are texts that would end the element that contains them.
var hostile = []string{
	`</script><script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `"><b>`, `' onload='x`, `]]><!--`,
	"</title></style></textarea>", "javascript:alert(1)", "\u2028\u2029\x00\xff",
}

func checkEscaping(t *testing.T, text string) {
	t.Helper()
	plain := renderHTMLForms(t, newSamplePage("word"))
	have := renderHTMLForms(t, newSamplePage(text))
	tags := regexp.MustCompile(`<[a-zA-Z/!][a-z0-9]*`)
	for _, name := range []string{"html", "update"} {
		// The elements must be the same as with a harmless text.
		if a, b := tags.FindAllString(plain[name], -1), tags.FindAllString(have[name], -1); strings.Join(a, "") != strings.Join(b, "") {
			t.Errorf("%q changes the elements of %s", text, name)
		}
		data := dataElement.FindAllStringSubmatch(have[name], -1)
		if len(data) != 2 {
			t.Fatalf("%q: %d charts have data", text, len(data))
		}
		for _, d := range data {
			if !json.Valid([]byte(d[1])) {
				t.Errorf("%q: the data are no JSON", text)
			}
		}
	}
}

func FuzzPage(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 || strings.TrimSpace(text) == "" {
			return // an empty text omits elements
		}
		checkEscaping(t, text)
	})
}

func TestValidate(t *testing.T) {
	for want, part := range map[string]Part{
		"has 1 cells; expected 2": {Table: &Table{Lines: [][]string{{"a", "b"}, {"a"}}}},
		"2 X and 1 Y values":      {Chart: &Chart{Series: []Series{{X: []float64{1, 2}, Y: []float64{1}}}}},
	} {
		p := &Page{Sections: []Section{{Parts: []Part{part}}}}
		var out bytes.Buffer
		for _, err := range []error{p.WriteHTML(&out), p.WriteUpdate(&out)} {
			if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
				t.Errorf("%q: %v, %d bytes written", want, err, out.Len())
			}
		}
	}
}

// TestIDs checks that IDs are made of given IDs or titles, and unique.
func TestIDs(t *testing.T) {
	p := &Page{Sections: []Section{
		{ID: "A b", Parts: []Part{{Chart: &Chart{ID: "a-b"}}, {Chart: &Chart{Title: "Größe"}}}},
		{Title: strings.Repeat("long ", 30)}, {},
	}}
	p.assignUniqueIDs()
	got := []string{p.Sections[0].ID, p.Sections[0].Parts[0].Chart.ID, p.Sections[0].Parts[1].Chart.ID, p.Sections[1].ID, p.Sections[2].ID}
	want := []string{"a-b", "a-b-2", "gr-e", "long-long-long-long-long-long-long-long-long-long-long-l", "x"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestApplication checks a page with its own body, and the policy for its script and style.
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
	checkPolicyHashes(t, html)
}

// TestUPlotIsUnchanged checks that uPlot's files are those of its package.
func TestUPlotIsUnchanged(t *testing.T) {
	for name, want := range map[string]string{
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	} {
		text, err := os.ReadFile("uplot/" + name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		if have := hex.EncodeToString(sum[:]); have != want {
			t.Errorf("%s has the SHA-256 %s, not %s", name, have, want)
		}
	}
}
