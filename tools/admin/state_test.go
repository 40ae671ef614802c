package admin

import (
	"io"
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

func findTable(t *testing.T, p *page.Page, caption string) *page.Table {
	t.Helper()
	for _, s := range p.Sections {
		for _, part := range s.Parts {
			if part.Table != nil && part.Table.Caption == caption {
				return part.Table
			}
		}
	}
	t.Fatalf("the page has no table %q", caption)
	return nil
}

func findChart(t *testing.T, p *page.Page, id string) *page.Chart {
	t.Helper()
	for _, s := range p.Sections {
		for _, part := range s.Parts {
			if part.Chart != nil && part.Chart.ID == id {
				return part.Chart
			}
		}
	}
	t.Fatalf("the page has no chart %q", id)
	return nil
}

// newServerState is a live of a source, with nothing of the machine: no walls, no sockets.
func newServerState(src Source) *pageState { return &pageState{source: src} }

// TestRates has a server whose counters grow evenly.
func TestRates(t *testing.T) {
	src := newFakeSource(tcp.Stats{Model: "epoll", Loops: 2})
	l := newServerState(src)
	begin := time.Now()
	var s tcp.Stats
	for i := range int64(30) {
		s = tcp.Stats{
			Model: "epoll", Loops: 2, Open: 1000 + i, Accepted: 10 * i, Messages: 500 * i, Reads: 250 * i, BytesIn: 2048 * i, BytesOut: 4096 * i,
			Refused: tcp.Refusals{Full: 3 * i}, Busy: time.Duration(i) * time.Second, Buffered: 1 << 20,
			Dialed: 2 * i, Dropped: 7, Replaced: 8, Broadcasts: 100, Casting: 5, CastBytes: 4 << 10, CastAge: 2 * time.Second,
		}
		s.HandlerTime.Buckets[4], s.HandlerTime.Buckets[8] = 90*i, 10*i
		src.stats.Store(&s)
		l.refreshIfDue(begin.Add(time.Duration(i) * time.Second))
	}
	p := l.refreshIfDueAndBuildPage(begin.Add(29 * time.Second))
	for _, want := range []struct {
		caption, line string
		column        int
		is            string
	}{
		{"Counters", "connections", 1, "1,029"},
		{"Counters", "connections_accepted_total", 2, "10"},
		{"Counters", "connections_refused_total: full", 2, "3"},
		{"Counters", "connections_dialed_total", 1, "58"},
		{"Counters", "broadcasts_pending_bytes", 1, "4 KiB"},
		{"Counters", "broadcasts_pending_age_seconds", 1, "2 s"},
		{"Counters", "messages_dropped_total", 1, "7"},
		{"Counters", "messages_total", 1, "14,500"},
		{"Counters", "messages_total", 2, "500"},
		{"Times, as the bounds of buckets that double", "handler", 1, "16 µs"},
		{"Times, as the bounds of buckets that double", "handler", 2, "256 µs"},
		{"Times, as the bounds of buckets that double", "lag", 2, "–"},
		{"Memory", "buffers", 1, "1 MiB"},
		{"Memory", "buffers", 2, format.Bytes(float64(1<<20) / 1029)},
	} {
		if got := findCell(t, p, want.caption, want.line, want.column); got != want.is {
			t.Errorf("%s, %s: %q, want %q", want.caption, want.line, got, want.is)
		}
	}
	if !slices.Contains(p.Facts, [2]string{"Utilisation of the loops", "50 %"}) {
		t.Errorf("the facts are %q; want 50 %% of utilisation", p.Facts)
	}
	c := findChart(t, p, "connections")
	if n := len(c.Series[0].X); n != 30 || c.Series[0].X[0] != -29 || c.Series[0].X[29] != 0 || c.Series[0].Y[29] != 1029 {
		t.Errorf("the chart of connections has %d points, %v, %v", n, c.Series[0].X, c.Series[0].Y)
	}
	if len(l.snapshots) > maxSnapshots {
		t.Errorf("%d moments are kept, want at most %d", len(l.snapshots), maxSnapshots)
	}
	var text strings.Builder
	if err := p.WriteHTML(&text); err != nil || !strings.Contains(text.String(), "1,029") {
		t.Errorf("as HTML: %v", err)
	}
}

// What is read at the end of a load is of one time: no rate of before stands beside the
// connections that are left.
func TestRatesEndWithTheLoad(t *testing.T) {
	src := newFakeSource(tcp.Stats{Model: "epoll"})
	l := newServerState(src)
	begin := time.Now()
	for i := range int64(10) {
		src.stats.Store(&tcp.Stats{Model: "epoll", Open: 50, Messages: 4000 * i, BytesIn: 1 << 20 * i})
		l.refreshIfDue(begin.Add(time.Duration(i) * time.Second))
	}
	src.stats.Store(&tcp.Stats{Model: "epoll", Messages: 36_000, BytesIn: 9 << 20})
	l.refreshIfDue(begin.Add(10 * time.Second))
	p := l.refreshIfDueAndBuildPage(begin.Add(11 * time.Second))
	if want := [][2]string{{"Connections", "0 of 0"}, {"Messages", "0 a second"}}; !slices.Equal(p.Figures[:2], want) {
		t.Errorf("the figures are %q; want %q", p.Figures[:2], want)
	}
	if got := findCell(t, p, "Counters", "messages_total", 2); got != "0" {
		t.Errorf("messages_total grew by %s a second; want 0", got)
	}
}

// With few connections there is no memory for each, and it is said why.
func TestMemoryOfFew(t *testing.T) {
	for open, want := range map[int64]string{0: "–", minConnsForMemory - 1: "–", minConnsForMemory: format.Bytes(float64(1<<20) / minConnsForMemory)} {
		src := newFakeSource(tcp.Stats{Model: "epoll"})
		l := newServerState(src)
		began := time.Now()
		l.refreshIfDue(began)
		src.stats.Store(&tcp.Stats{Model: "epoll", Open: open, Buffered: 1 << 20})
		p := l.refreshIfDueAndBuildPage(began.Add(time.Second))
		if got := findCell(t, p, "Memory", "buffers", 2); got != want {
			t.Errorf("%d connections: %q for each, want %q", open, got, want)
		}
		i := slices.IndexFunc(p.Facts, func(f [2]string) bool { return f[0] == "Memory per connection" })
		if said := p.Facts[i][1]; strings.Contains(said, "(from 100 connections on)") != (open < minConnsForMemory) {
			t.Errorf("%d connections: the page says %q for each", open, said)
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

// What is kept stays within its bounds, however often somebody looks.
func TestLooksAreBounded(t *testing.T) {
	l := newServerState(newFakeSource(tcp.Stats{Model: "epoll"}))
	begin := time.Now()
	for i := range 5000 {
		l.refreshIfDue(begin.Add(time.Duration(i) * minSampleInterval / 3))
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
}

// A watch adds a point a second, and ends when it is told to.
func TestPointASecond(t *testing.T) {
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
			if strings.Contains(w.Body.String(), "data-post=") && strings.Contains(w.Body.String(), "control/") && target == "/live" {
				t.Error("there are buttons without a token")
			}
			if w.Header().Get("X-Frame-Options") != "DENY" {
				t.Error("the page may be put in a frame")
			}
		}
	}
	h := Handler(Config{Source: newFakeSource(tcp.Stats{})})
	if w := request(h, "POST", "/control/pause"); w.Code != http.StatusNotFound {
		t.Errorf("an order without a token configured: %d, want 404", w.Code)
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
	const caption = "Where it would stop"
	for line, want := range map[string][]string{
		"nofile":    {"90", "100", "90 %", "descriptors: soft 100"},
		"memory":    {"90", "100", "90 %", "memory"},
		"somaxconn": {"90", "900", "10 %", "hurts, does not stop: the queue"},
	} {
		for i, is := range want {
			if got := findCell(t, p, caption, line, i+1); got != is {
				t.Errorf("%s: column %d is %q, want %q", line, i+1, got, is)
			}
		}
	}
	table := p.Sections[0].Parts[0].Table
	if len(table.Lines) != 4 || table.Lines[3][0] != "somaxconn" || table.Tone(1, 3) != page.Warn || table.Tone(3, 3) != page.Plain {
		t.Errorf("the table is %v, %v", table.Lines, table.Tones)
	}
	if got := findCell(t, p, "What is in use of the limits that can be read", "memory", 1); got != "1 MiB" {
		t.Errorf("in use of memory is %q", got)
	}
	if got := toneOfUtilization(0.96); got != page.Bad {
		t.Errorf("96 %% is %q", got)
	}
}
