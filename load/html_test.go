package load

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pageOf is the report of a stream; it must be well formed.
func pageOf(t testing.TB, s *Stream) string {
	t.Helper()
	var b strings.Builder
	if err := s.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, b.String())
	return b.String()
}

// wellFormed says where elements aren't closed as they were opened.
func wellFormed(t testing.TB, page string) {
	t.Helper()
	// What is in script and style isn't markup.
	page = regexp.MustCompile(`(?s)(<script>|<style>).*?(</script>|</style>)`).ReplaceAllString(page, "$1$2")
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict = false
	d.AutoClose = []string{"meta"}
	d.Entity = xml.HTMLEntity
	var open []string
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local != "meta" {
				open = append(open, e.Name.Local)
			}
		case xml.EndElement:
			if e.Name.Local == "meta" {
				continue
			}
			if len(open) == 0 || open[len(open)-1] != e.Name.Local {
				t.Fatalf("byte %d: %s ends within %v", d.InputOffset(), e.Name.Local, open)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("%v don't end", open)
	}
}

func TestHTML(t *testing.T) {
	page := pageOf(t, readBack(t, stalling(t)))
	for _, want := range []string{
		"10.0.0.7:9000", "The run has faults.", "Connections lost: 240 × connection reset by peer.", "12 attempts to connect failed.",
		"50,000 messages a second, at random times (Poisson), for 1m", "loader-1, 8 × Xeon, Linux 6.8",
		"<h2>Messages a second</h2>", "<h2>Latency</h2>", "<h2>Errors a second</h2>", "<h2>Connections</h2>", "<h2>CPU</h2>", "<h2>Memory</h2>", "<h2>Latency by percentile</h2>",
		"intended", "what a closed loop would have said", "The account adds up", "120 from 40s to 41s", "Shaded:",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
	// The three figures that matter are the large ones; where curves coincide both are seen.
	if found := regexp.MustCompile(`(?s)<div class="cards main">.*?<span>Rate</span>.*?<span>p99</span>.*?<span>Errors</span>.*?</div>\n</div>`).FindString(page); strings.Count(found, "<span>") != 3 {
		t.Errorf("the large figures are %s; want rate, p99 and errors", found)
	}
	if !regexp.MustCompile(`\.line\.c-answered[^{]*{[^}]*stroke-dasharray`).MatchString(page) {
		t.Error("the curve of answers has no gaps, and hides the one of what is sent")
	}
	// Nothing is asked for from anywhere.
	if found := regexp.MustCompile(`(?i)(src|href)=|url\(|@import|https?://|fetch\(`).FindString(page); found != "" {
		t.Errorf("the page has %q; expected it to be self-contained", found)
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") || strings.Contains(page, "ZgotmplZ") {
		t.Error("the page has a NaN, an Inf or what the template refused")
	}
}

// Hostile texts of a stream are texts of the page.
func TestHTMLEscapes(t *testing.T) {
	const hostile = `</script><script>alert("x")</script><img src=x onerror=alert(1)>'"&`
	events := stalling(t)
	events[0].Plan.Host, events[0].Plan.Model, events[0].Plan.Mode = hostile, hostile, hostile
	events[10].Interval.Stage = hostile
	events[10].Interval.Errors = map[string]int64{hostile: 3}
	r := events[len(events)-1].Result
	r.Target, r.Model, r.Mode, r.TLS = hostile, hostile, hostile, hostile
	r.ConnectErrors, r.Lost = map[string]int64{hostile: 1}, map[string]int64{hostile: 1}
	r.Limits = []Limit{{hostile, hostile, hostile}}
	r.Mismatched, r.FirstMismatch = 1, &Mismatch{Want: hostile, Got: hostile}
	page := pageOf(t, readBack(t, events))
	for _, bad := range []string{"<img", "<script>alert", "</script><script>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if n := strings.Count(page, "&lt;/script&gt;"); n < 10 {
		t.Errorf("the hostile text is there %d times; expected it wherever the stream has it", n)
	}
	if n := strings.Count(page, "<script>"); n != 1 {
		t.Errorf("%d scripts, expected 1", n)
	}
}

// Streams that lack this or that still make a page.
func TestHTMLOfLittle(t *testing.T) {
	events := stalling(t)
	for _, test := range []struct {
		name   string
		stream *Stream
		says   string
	}{
		{"cut off", readBack(t, events[:30]), "The run was cut off after 27s."},
		{"cut off at once", readBack(t, events[:1]), "The run was cut off after 0."},
		{"no plan", &Stream{Result: &Result{Target: "a:1", Connected: 1}}, "Nothing failed."},
		{"an interval without a length", &Stream{Intervals: []Interval{{Sent: 5}}}, "unknown target"},
		{"one interval", readBack(t, events[40:41]), "Latency"},
		{"a clean run", &Stream{Result: &Result{Connected: 1, Answered: 1, Window: time.Second, CPUs: 1, UserCPU: time.Second / 2}}, "used 50\u00a0% of its CPUs, and met no limit that it knows of."},
		{"no answers awaited", &Stream{Result: &Result{Connected: 1, Sent: 8000, Window: time.Second, Intended: 8000, Mute: true, Bytes: Bytes{Sent: 9}}}, "sent, of 8,000/s intended"},
		{"nor all of it sent", &Stream{Result: &Result{Connected: 1, Sent: 5000, Window: time.Second, Intended: 8000, Mute: true}}, "Less was sent than intended: 5,000/s of 8,000/s."},
		{"bytes without answers", &Stream{Result: &Result{Mute: true, Bytes: Bytes{Sent: 9}}}, "No answers were awaited."},
		{"the generator's limit", &Stream{Result: &Result{Connected: 1, Limits: []Limit{{"ports", "no port was free", "add sources."}}}}, "No port was free. Add sources."},
		{"a busy generator", &Stream{Result: &Result{Connected: 1, Window: time.Second, CPUs: 1, UserCPU: time.Second}}, "The generator was the bottleneck."},
		{"a rate that was missed", &Stream{Result: &Result{Connected: 1, Window: time.Second, Answered: 5000, Intended: 8000, Unsent: 2000}}, "5,000/s of 8,000/s"},
		{"bytes that are missing", &Stream{Result: &Result{Bytes: Bytes{Sent: 9, Answered: 4}}}, "5 are missing"},
		{"few answers", &Stream{Result: &Result{Latency: Latency{Count: 1, P50: 5, Max: 5}}}, "Latency by percentile"},
	} {
		if page := pageOf(t, test.stream); !strings.Contains(page, test.says) || strings.Contains(page, "NaN") {
			t.Errorf("%s: the page doesn't say %q, or has a NaN", test.name, test.says)
		}
	}
}

// A window that is too short says nothing of the generator.
func TestVerdictOfShortWindow(t *testing.T) {
	r := &Result{Connected: 1, Answered: 1, Window: shortest - 1, CPUs: 1, UserCPU: time.Second}
	for _, v := range (&Stream{Result: r}).verdicts(nil) {
		if v.Class != "good" || v.More != "" {
			t.Errorf("it says %q, %q; want that the run was clean", v.Text, v.More)
		}
	}
}

// TestHTMLBound has more intervals and causes than are shown.
func TestHTMLBound(t *testing.T) {
	s := new(Stream)
	for n := range 20 * mostPlaces {
		from := time.Duration(n) * time.Second
		s.Intervals = append(s.Intervals, Interval{
			From: from, To: from + time.Second, Sent: 5,
			Errors: map[string]int64{"cause " + strconv.Itoa(n%(mostCauses+7)): 1}, Latency: Latency{Count: 1, Max: time.Millisecond},
		})
	}
	page := pageOf(t, s)
	if len(page) > 1<<20 {
		t.Errorf("a page of %d bytes; expected less than 1 MiB", len(page))
	}
	if !strings.Contains(page, "and 7 more causes") || !strings.Contains(page, "the worst of each few intervals") {
		t.Error("the page doesn't say that it leaves something out")
	}
}

// No two texts of a drawing are in each other's way, however wide it is.
func TestTextsDoNotOverlap(t *testing.T) {
	events := stalling(t)
	for name, s := range map[string]*Stream{
		"a minute": readBack(t, events), "half of it": readBack(t, events[:30]), "a second": readBack(t, events[:2]),
		"two hours": {Intervals: []Interval{{To: 2*time.Hour + 7*time.Minute, Sent: 1e15, Latency: Latency{Count: 1, P50: 1, Max: time.Minute}}}},
	} {
		drawings := regexp.MustCompile(`(?s)<svg class="w(\d+)".*?</svg>`).FindAllStringSubmatch(pageOf(t, s), -1)
		if len(drawings) == 0 {
			t.Errorf("%s: no drawings", name)
		}
		for _, d := range drawings {
			checkTexts(t, name, d[0], d[1])
		}
	}
}

func checkTexts(t *testing.T, name, drawing, width string) {
	t.Helper()
	type box struct {
		left, right, base float64
		text              string
	}
	var boxes []box
	wide, _ := strconv.ParseFloat(width, 64)
	for _, m := range regexp.MustCompile(`<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)">([^<]*)<`).FindAllStringSubmatch(drawing, -1) {
		x, _ := strconv.ParseFloat(m[1], 64)
		y, _ := strconv.ParseFloat(m[2], 64)
		length := float64(chartText * len([]rune(m[4])))
		b := box{x - length, x, y, m[4]}
		if m[3] == "middle" {
			b.left, b.right = x-length/2, x+length/2
		}
		if b.left < -1 || b.right > wide {
			t.Errorf("%s, %s wide: %q reaches from %.0f to %.0f", name, width, b.text, b.left, b.right)
		}
		for _, o := range boxes {
			if b.left < o.right && o.left < b.right && math.Abs(b.base-o.base) < 12 {
				t.Errorf("%s, %s wide: %q and %q are in each other's way", name, width, o.text, b.text)
			}
		}
		boxes = append(boxes, b)
	}
}
