package lab

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/faults"
)

func TestSoakChecks(t *testing.T) {
	for want, w := range map[string]Workload{
		"a duration of 3s":     {Duration: 3 * time.Second},
		"a duration of 25h":    {Duration: 25 * time.Hour},
		"a line every 1ms":     {Duration: time.Minute, Soak: &SoakLoad{Every: time.Millisecond}},
		"a line every 20m":     {Duration: 10 * time.Minute, Soak: &SoakLoad{Every: 20 * time.Minute}},
		"-1 honest clients":    {Duration: time.Minute, Soak: &SoakLoad{Honest: -1}},
		"10001 honest clients": {Duration: time.Minute, Soak: &SoakLoad{Honest: 10001}},
	} {
		w.Name, w.Kind = "attack", Soaking
		var wrong ScenarioError
		if err := w.check(); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a ScenarioError with %q", err, want)
		}
	}
	s := builtIn(t, "soak")
	if w := s.Workloads[0]; w.Duration != 10*time.Minute || w.soak() != (SoakLoad{Every: time.Minute, Honest: 100}) {
		t.Errorf("defaults: %+v, %+v", w, w.soak())
	}
	if load := (Workload{Duration: 8 * time.Second}).soak(); load != (SoakLoad{Every: 2 * time.Second, Honest: 100}) {
		t.Errorf("without settings: %+v", load)
	}
}

// TestSoakServerEnds says why nothing was soaked.
func TestSoakServerEnds(t *testing.T) {
	o := children(t) // which have no part "serve"
	s, err := builtIn(t, "soak").Keep("goroutine")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), s, o)
	if err != nil || r.Failed() != 1 || !strings.Contains(r.Runs[0].Error, "the server ended: exit status 3") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// The report has what was said of each run, and a verdict.
func TestSoakText(t *testing.T) {
	scenario := builtIn(t, "soak")
	scenario.Subjects = []Subject{{Name: "goroutine"}, {Name: "epoll"}}
	r := &Report{Scenario: scenario}
	for _, run := range []RunRecord{
		{Subject: "goroutine", Soak: &SoakFigures{Lines: []string{"all at once", "going on"}, Answers: 1234, P99: 0.0015}},
		{Subject: "epoll", Error: "memory has grown", Soak: &SoakFigures{Verdicts: []string{"memory has grown"}, Errors: 7}},
	} {
		run.Workload, run.Round = "attack", 1
		r.Runs = append(r.Runs, run)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"goroutine      1    1,234       0      1.50 ms  sound\n", "\ngoroutine, round 1\n    all at once\n    going on\n    goroutine: sound\n",
		"epoll          1        0       7         0 ns  failed\n", "\n    epoll, round 1: FAILED: memory has grown\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text does not say %q:\n%s", want, b.String())
		}
	}
}

// watched has seen a server whose memory and descriptors went from one figure to
// another.
func watched(rss, rssEnd int64, fds, fdsEnd int) *soakWatch {
	var w soakWatch
	begin := time.Now()
	w.begin(begin, 40*time.Second)
	for i := range 40 {
		f := faults.Footprint{RSS: rss + (rssEnd-rss)*int64(i)/39, Descriptors: fds + (fdsEnd-fds)*i/39}
		w.sample(begin.Add(time.Duration(i)*time.Second), f)
	}
	return &w
}

func TestSoakVerdict(t *testing.T) {
	for want, w := range map[string]*soakWatch{
		"":                                   watched(20e6, 30e6, 300, 340),
		" ":                                  watched(900e6, 1000e6, 3000, 3100),
		"memory has grown from 24.6 to 55.4": watched(20e6, 60e6, 300, 300),
		"descriptors have grown from 316 to": watched(20e6, 20e6, 300, 440),
		"memory has grown; descriptors":      watched(20e6, 60e6, 300, 500),
		"only 0 and 0 samples in the first":  {},
	} {
		got := strings.Join(w.verdict(), "; ")
		if strings.TrimSpace(want) == "" && got != "" {
			t.Errorf("got %q, want nothing", got)
		}
		for part := range strings.SplitSeq(want, "; ") {
			if !strings.Contains(got, strings.TrimSpace(part)) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
	want := "first to last quarter: 24.6 to 55.4 MB, 311 to 388 descriptors"
	if got := watched(20e6, 60e6, 300, 400).String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var late soakWatch // a clock that is off puts nothing outside
	late.begin(time.Now(), time.Second)
	late.sample(late.from.Add(-time.Hour), faults.Footprint{})
	late.sample(late.from.Add(time.Hour), faults.Footprint{})
	if len(late.quarters[0].rss) != 1 || len(late.quarters[3].rss) != 1 {
		t.Errorf("got %+v", late.quarters)
	}
}

func TestSoakGrown(t *testing.T) {
	var w soakWatch
	for _, test := range []struct {
		causes map[string]int64
		want   string
	}{
		{map[string]int64{"peer": 0}, "none"},
		{map[string]int64{"peer": 2, "reset": 1500}, "peer 2, reset 1,500"},
		{map[string]int64{"peer": 2, "reset": 1501}, "reset 1"},
	} {
		if got := w.grown(test.causes); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestSoakRate(t *testing.T) {
	var w soakWatch
	begin := time.Now()
	w.begin(begin, time.Minute)
	for _, test := range []struct {
		answers int64
		after   time.Duration
		want    float64
	}{{100, 10 * time.Second, 10}, {100, 12 * time.Second, 0}, {300, 14 * time.Second, 100}} {
		if got := w.rate(test.answers, begin.Add(test.after)); !near(got, test.want) {
			t.Errorf("after %v: got %v a second, want %v", test.after, got, test.want)
		}
	}
}

const metricsText = `# HELP myriad_connections_closed_total Connections that have closed.
# TYPE myriad_connections_closed_total counter
myriad_connections_closed_total{cause="peer"} 12
myriad_connections_closed_total{cause="too_long",server="a"} 1.5e+06
myriad_connections_refused_total{server="a",cause="full"} 3
myriad_connections_open 7
`

func TestMetricsSource(t *testing.T) {
	got, err := readCauses(strings.NewReader(metricsText))
	if err != nil || len(got) != 3 || got["peer"] != 12 || got["too_long"] != 1500000 || got["refused full"] != 3 {
		t.Errorf("got %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"": "no cause",
		"myriad_connections_closed_total{cause=\"peer\"} many": "expected a line",
		"myriad_connections_closed_total{why=\"peer\"} 1":      "expected a line",
		strings.Repeat("x", 1<<17):                             "too long",
	} {
		if _, err := readCauses(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want %q", text, err, want)
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, metricsText)
		}
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(ln) }()
	defer func() { srv.Close(); <-ended }()
	m := MetricsSource{Addr: ln.Addr().String()}
	if got, err := m.Causes(t.Context()); err != nil || got["peer"] != 12 {
		t.Errorf("got %v, %v", got, err)
	}
	srv.Close()
	if _, err := m.Causes(t.Context()); err == nil {
		t.Error("no error when nobody is there")
	}
}

// TestSoakAttacks checks that each attacker can be started, and that what is said
// of it is true.
func TestSoakAttacks(t *testing.T) {
	target := netip.MustParseAddrPort("127.0.0.1:1")
	for _, a := range soakAttacks {
		if w := a.make(target); w.Conns != a.conns || w.Target != target {
			t.Errorf("%s: got %d connections to %v, want %d", a.name, w.Conns, w.Target, a.conns)
		}
	}
}
