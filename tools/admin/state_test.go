package admin

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/web"
)

// findCell finds a cell of a page by its table's caption and its line's first cell.
func findCell(t *testing.T, p *page.Page, caption, line string, column int) string {
	t.Helper()
	for _, cells := range findTable(t, p, caption).Lines {
		if cells[0] == line {
			return cells[column]
		}
	}
	t.Errorf("the page has no line %q in the table %q", line, caption)
	return ""
}

// findPart finds the first part of a page for which is returns true.
func findPart(t *testing.T, p *page.Page, what string, is func(page.Part) bool) page.Part {
	t.Helper()
	for _, s := range p.Sections {
		if i := slices.IndexFunc(s.Parts, is); i >= 0 {
			return s.Parts[i]
		}
	}
	t.Fatalf("the page has no %s", what)
	return page.Part{}
}

func findTable(t *testing.T, p *page.Page, caption string) *page.Table {
	t.Helper()
	is := func(part page.Part) bool { return part.Table != nil && part.Table.Caption == caption }
	return findPart(t, p, "table "+caption, is).Table
}

func findChart(t *testing.T, p *page.Page, id string) *page.Chart {
	t.Helper()
	is := func(part page.Part) bool { return part.Chart != nil && part.Chart.ID == id }
	return findPart(t, p, "chart "+id, is).Chart
}

// newServerState is a live of a source, with nothing of the machine: no walls, no sockets.
func newServerState(src Source) *pageState { return &pageState{source: src} }

// TestRates has a server whose counters grow evenly. What is read at the end of a load is of one time: no rate of
// before stands beside the connections that are left.
func TestRates(t *testing.T) {
	src := newFakeSource(tcp.Stats{Model: "epoll", Loops: 2})
	l := newServerState(src)
	begin := time.Now()
	var s tcp.Stats
	for i := range int64(30) {
		s = tcp.Stats{
			Model: "epoll", Loops: 2, Open: 1000 + i, Accepted: 10 * i, Messages: 500 * i, Reads: 250 * i, BytesIn: 2048 * i, BytesOut: 4096 * i,
			Refused: tcp.Refusals{Full: 3 * i}, Busy: time.Duration(i) * time.Second, Buffered: 1 << 20,
			Dialed: 2 * i, Dropped: 7, Replaced: 8, Broadcasts: 100, ActiveBroadcasts: 5, ActiveBroadcastBytes: 4 << 10, OldestBroadcastAge: 2 * time.Second,
		}
		s.HandlerTime.Buckets[4], s.HandlerTime.Buckets[8] = 90*i, 10*i
		src.stats.Store(&s)
		l.refreshIfDue(begin.Add(time.Duration(i) * time.Second))
	}
	p := l.refreshIfDueAndBuildPage(begin.Add(29 * time.Second))
	checkCells(t, p, "Counters", map[string][]string{
		"connections":                     {"1,029"},
		"connections_accepted_total":      {"", "10"},
		"connections_refused_total: full": {"", "3"},
		"connections_dialed_total":        {"58"},
		"broadcasts_pending_bytes":        {"4 KiB"},
		"broadcasts_pending_age_seconds":  {"2 s"},
		"messages_dropped_total":          {"7"},
		"messages_total":                  {"14,500", "500"},
	})
	checkCells(t, p, "Times, as the bounds of buckets that double", map[string][]string{"handler": {"16 µs", "256 µs"}, "lag": {"", "–"}})
	checkCells(t, p, "Memory", map[string][]string{"buffers": {"1 MiB", format.Bytes(float64(1<<20) / 1029)}})
	if !slices.Contains(p.Facts, [2]string{"Utilisation of the loops", "50 %"}) {
		t.Errorf("the facts are %q; want 50 %% of utilisation", p.Facts)
	}
	c := findChart(t, p, "connections")
	if n := len(c.Series[0].X); n != 30 || c.Series[0].X[0] != -29 || c.Series[0].X[29] != 0 || c.Series[0].Y[29] != 1029 {
		t.Errorf("the chart of connections has %d points, %v, %v", n, c.Series[0].X, c.Series[0].Y)
	}
	s.Open = 0
	src.stats.Store(&s)
	l.refreshIfDue(begin.Add(30 * time.Second))
	p = l.refreshIfDueAndBuildPage(begin.Add(31 * time.Second))
	if want := [][2]string{{"Connections", "0 of 0"}, {"Messages", "0 a second"}}; !slices.Equal(p.Figures[:2], want) {
		t.Errorf("the figures are %q; want %q", p.Figures[:2], want)
	}
	checkCells(t, p, "Counters", map[string][]string{"messages_total": {"14,500", "0"}})
}

// checkCells compares the cells of a table behind the first of a line. An empty string stands for any text.
func checkCells(t *testing.T, p *page.Page, caption string, want map[string][]string) {
	t.Helper()
	for line, cells := range want {
		for i, is := range cells {
			if got := findCell(t, p, caption, line, i+1); got != is && is != "" {
				t.Errorf("%s, %s: column %d is %q, want %q", caption, line, i+1, got, is)
			}
		}
	}
}

// With few connections there is no memory for each, and it is said why.
func TestMemoryOfFew(t *testing.T) {
	for open, want := range map[int64]string{
		minConnsForMemory - 1: "–",
		minConnsForMemory:     format.Bytes(float64(1<<20) / minConnsForMemory),
	} {
		src := newFakeSource(tcp.Stats{Model: "epoll"})
		l := newServerState(src)
		began := time.Now()
		l.refreshIfDue(began)
		src.stats.Store(&tcp.Stats{Model: "epoll", Open: open, Buffered: 1 << 20})
		p := l.refreshIfDueAndBuildPage(began.Add(time.Second))
		checkCells(t, p, "Memory", map[string][]string{"buffers": {"", want}})
		if said := strings.Contains(fmt.Sprint(p.Facts), "(from 100 connections on)"); said != (open < minConnsForMemory) {
			t.Errorf("%d connections: the page says %q", open, p.Facts)
		}
	}
}

// Where the handler cuts no messages, which are counted by framers, it is said what is
// received instead.
func TestMessagesOrReceives(t *testing.T) {
	for messages, want := range map[int64]string{0: "Receives", 7: "Messages"} {
		p := newServerState(newFakeSource(tcp.Stats{Model: "epoll", Reads: 9, Messages: messages})).refreshIfDueAndBuildPage(time.Now())
		var names []string
		for _, f := range p.Figures {
			names = append(names, f[0])
		}
		if !slices.Equal(names, []string{"Connections", want, "Handler time, p99"}) {
			t.Errorf("%d messages: the figures at the top are %q", messages, names)
		}
		if n := len(findChart(t, p, "messages").Series); n != 1+int(min(messages, 1)) {
			t.Errorf("%d messages: the chart has %d curves", messages, n)
		}
	}
}

// What is kept stays within its bounds, however often somebody looks. A watch adds a point a second, and ends when it
// is told to.
func TestLooksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newServerState(newFakeSource(tcp.Stats{Model: "epoll"}))
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			l.sampleEverySecond(stop)
			close(ended)
		}()
		time.Sleep(20*time.Second + minSampleInterval/2)
		close(stop)
		<-ended
		if n := len(l.points); n != 21 {
			t.Errorf("%d points after 20 s, want 21", n)
		}
		for range 5000 {
			time.Sleep(minSampleInterval / 3)
			l.refreshIfDue(time.Now())
			if len(l.snapshots) > maxSnapshots || len(l.points) > maxPoints {
				t.Fatalf("%d moments and %d points are kept", len(l.snapshots), len(l.points))
			}
		}
		if n := len(l.points); n != maxPoints {
			t.Errorf("%d points of 5,000 looks in 1,667 s, want %d", n, maxPoints)
		}
		if !l.walls.at.IsZero() || !l.talkers.at.IsZero() {
			t.Error("walls or sockets were looked at though nobody asked for the page")
		}
	})
}

// listenerSource is a source with listeners.
type listenerSource struct{ Source }

func (listenerSource) ListenerStats() []tcp.ListenerStats {
	return []tcp.ListenerStats{{Name: "inner", Addr: &net.TCPAddr{Port: 9000}, Open: 1, Accepted: 2, Refused: 3}}
}

func TestListenerTable(t *testing.T) {
	p := newServerState(listenerSource{newFakeSource(tcp.Stats{})}).refreshIfDueAndBuildPage(time.Now())
	if got, want := findTable(t, p, "Listeners").Lines[1], []string{"inner", ":9000", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("the listener is told as %q, want %q", got, want)
	}
}

func TestRouteTable(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	workers, err := pool.New(pool.Config{Max: 1})
	testkit.RequireNoError(t, err)
	srv := &tcp.Server{Handler: &web.HTTP{Handler: mux, Pool: workers}}
	addr, stop := testserver.Start(t, srv)
	c := testkit.Dial(t, addr)
	c.Send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
	c.ReadResponse()
	if got, want := findTable(t, newServerState(srv).refreshIfDueAndBuildPage(time.Now()), "HTTP handlers").Lines[1], []string{"/hello", "workers", "0", "–"}; !slices.Equal(got, want) {
		t.Errorf("the route is shown as %q, want %q", got, want)
	}
	stop()
	_, _ = workers.Close(t.Context()) // nothing is left to do
}

// The page is served as a whole and as its update, of every state of a server.
func TestLivePage(t *testing.T) {
	for want, s := range map[string]tcp.Stats{
		"has not started":                    {},
		"serves 77":                          {Model: "epoll", Open: 77},
		"Accepting is paused by an operator": {Model: "epoll", AcceptingPaused: true},
		"is draining or has ended":           {Model: "epoll", Draining: true, AcceptingPaused: true},
		"3 worker processes":                 {Model: "goroutine", Processes: 3, Restarts: 1},
	} {
		h := Handler(Config{Source: newFakeSource(s)})
		for _, target := range []string{"/", "/live"} {
			w := requestAndExpect(t, h, "GET", target, 200, want)
			if whole := strings.Contains(w.Body.String(), "<script>"); whole != (target == "/") {
				t.Errorf("%s is the whole page: %v", target, whole)
			}
			if w.Header().Get("X-Frame-Options") != "DENY" {
				t.Error("the page may be put in a frame")
			}
		}
		requestAndExpect(t, h, "POST", "/control/pause", 404, "") // without a token configured
	}
}

// TestWallTable shows walls by how near they are, those that count from what is in use
// with the connections added.
func TestWallTable(t *testing.T) {
	l := newServerState(newFakeSource(tcp.Stats{Model: "epoll"}))
	l.walls = machineLimitReport{
		open: 90,
		report: &doctor.Report{Walls: []doctor.Wall{
			{Name: "nofile", What: "descriptors", Present: "soft 100", Holds: 100},
			{Name: "memory", What: "memory", Holds: 10, Beyond: true, Used: 1 << 20, Limit: 1 << 30, Unit: "bytes"},
			{Name: "somaxconn", What: "the queue", Holds: 900, Soft: true},
			{Name: "loopback", What: "the loopback", Holds: doctor.Unlimited},
		}},
	}
	p := &page.Page{Title: "walls", Sections: []page.Section{l.buildMachineLimitSection()}}
	checkCells(t, p, "Where it would stop", map[string][]string{
		"nofile":    {"90", "100", "90 %", "descriptors: soft 100"},
		"memory":    {"90", "100", "90 %", "memory"},
		"somaxconn": {"90", "900", "10 %", "hurts, does not stop: the queue"},
	})
	table := p.Sections[0].Parts[0].Table
	if len(table.Lines) != 4 || table.Lines[3][0] != "somaxconn" || table.Tone(1, 3) != page.Warn || table.Tone(3, 3) != page.Plain {
		t.Errorf("the table is %v, %v", table.Lines, table.Tones)
	}
	checkCells(t, p, "What is in use of the limits that can be read", map[string][]string{"memory": {"1 MiB"}})
	if got := toneOfUtilization(0.96); got != page.Bad {
		t.Errorf("96 %% is %q", got)
	}
}

func TestQuantile(t *testing.T) {
	var some tcp.Histogram
	if q := quantileSecondsOrNaN(some, 0.99); !math.IsNaN(q) {
		t.Errorf("of nothing it is %v, want none", q)
	}
	some.Count, some.Buckets[0], some.Buckets[10], some.Buckets[tcp.Buckets-1] = 100, 97, 2, 1
	for p, want := range map[float64]float64{0.97: 1e-6, 0.98: 1024e-6, 1: 16.777216} { // the last is beyond all bounds
		if q := quantileSecondsOrNaN(some, p); q != want {
			t.Errorf("the quantile %v is %v s, want %v", p, q, want)
		}
	}
}

// A counter that shrank, because a worker process was killed, has not grown.
func TestShrunk(t *testing.T) {
	if r := growthPerSecondOrNaN(10, 4, time.Second); r != 0 {
		t.Errorf("a second: %v, want 0", r)
	}
	if r := growthPerSecondOrNaN(10, 40, 10*time.Second); r != 3 {
		t.Errorf("a second: %v, want 3", r)
	}
	var before, now tcp.Histogram
	before.Buckets[3], now.Buckets[3], now.Buckets[5] = 7, 4, 2
	if h := histogramGrowth(before, now); h.Count != 2 || h.Buckets[3] != 0 || h.Buckets[5] != 2 {
		t.Errorf("it has got %+v", h)
	}
}
