package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

const liveToken = "0123456789abcdef"

// liveServer is a myriad serve with its page.
type liveServer struct{ addr, admin string }

// startLive builds and starts one, and ends it with the test.
func startLive(t *testing.T, args ...string) liveServer {
	t.Helper()
	dir := t.TempDir()
	program, err := testserver.Build(dir, "../..", "./tools/myriad")
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(dir, "token")
	if err := os.WriteFile(secret, []byte(liveToken), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"serve", "--app", "lines", "--addr", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--admin-control", "--admin-token-file", secret}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	var s liveServer
	for lines := bufio.NewScanner(out); s.addr == ""; {
		if !lines.Scan() {
			t.Fatal("the server does not start")
		}
		before, after, _ := strings.Cut(lines.Text(), " on ")
		switch {
		case strings.Contains(before, "serving"):
			s.addr, _, _ = strings.Cut(after, " ")
		case strings.Contains(before, "metrics"):
			s.admin = after
		}
	}
	return s
}

// TestUpgradeFromPage has the operator upgrade the server: the page says what has come of it, and
// follows the new process.
func TestUpgradeFromPage(t *testing.T) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.9.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255)) // nobody else's
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s := startLive(t, "--admin", l.Addr().String())
	const n = 5
	s.talk(t, n)
	p := open(t, s.admin)
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	eval[bool](p, "window.confirm = () => true; true")
	p.do(chromedp.Click(`button[data-post="control/upgrade"]`))
	p.do(chromedp.WaitVisible("dialog input"))
	p.do(chromedp.SendKeys("dialog input", liveToken+"\r"))
	p.until(fmt.Sprintf(`document.getElementById("_said").textContent.match(/^process \d+ has taken over with %d connections in .*; 0 are lost$/) !== null`, n))
	next, err := os.FindProcess(eval[int](p, `parseInt(document.getElementById("_said").textContent.split(" ")[1])`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		next.Signal(syscall.SIGTERM)
		next.Signal(syscall.SIGTERM)
	})
	p.until(`document.getElementById("_state").textContent.startsWith("live")`)
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	if stats := s.stats(t); stats.TakenOver != n {
		t.Errorf("the process at the page's address has taken over %d connections, want %d", stats.TakenOver, n)
	}
}

// talk has a number of connections send a line every few milliseconds, until the test
// ends.
func (s liveServer) talk(t *testing.T, n int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var talking sync.WaitGroup
	t.Cleanup(talking.Wait)
	t.Cleanup(stop)
	for range n {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(ctx, func() { c.Close() })
		talking.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			answer := make([]byte, 5)
			for {
				if _, err := io.WriteString(c, "ping\n"); err != nil {
					return
				}
				if _, err := io.ReadFull(c, answer); err != nil {
					return
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

// fact is a script that reads a fact at the top of the page.
func fact(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".facts div")].find((d) => d.querySelector("dt").textContent === %q).querySelector("dd").textContent`, name)
}

// stats asks the server itself.
func (s liveServer) stats(t *testing.T) (stats struct {
	Open, Accepted, Messages, TakenOver int64
	AcceptingPaused                     bool
}) {
	t.Helper()
	answer, err := http.Get(s.admin + "stats")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&stats); err != nil {
		t.Fatal(err)
	}
	return stats
}

// drawnCharts is how many charts have something in their canvas.
const drawnCharts = `[...myriadPage.charts.values()].filter((c) => {
	const canvas = c.plot.ctx.canvas, copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
	copy.drawImage(canvas, 0, 0);
	const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
	return c.plot.data[0].length > 2 && data.some((v, i) => i % 4 === 3 && v > 0);
}).length`

// TestLivePage opens the page of a server that serves, sees it move and agree with the
// server, and has the operator pause it, close a connection and drain it.
func TestLivePage(t *testing.T) {
	s := startLive(t)
	const n = 20
	s.talk(t, n)
	p := open(t, s.admin)
	p.until(drawnCharts + " === 6")
	if !eval[bool](p, `document.getElementById("_state").textContent.startsWith("live") && getComputedStyle(document.getElementById("_state")).position === "static"`) {
		t.Error("the state of the page has no label, or lies over the page")
	}
	if !eval[bool](p, `(({ series }) => series[1].dash === undefined && series[2].dash.length === 2)(myriadPage.charts.get("bytes").plot)`) {
		t.Error("where the curves of what is received and sent coincide one is not seen")
	}
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	p.until(fact("Messages") + `.match(/^[1-9][0-9,.]* a second$/) !== null`)
	if open := s.stats(t).Open; open != n {
		t.Errorf("the server has %d connections open, the page %d", open, n)
	}
	total := `Number([...document.querySelectorAll("#figures tr")].find((r) => r.cells[0].textContent === "messages_total").cells[1].textContent.replaceAll(",", ""))`
	before := eval[float64](p, total)
	p.until(fmt.Sprintf("%s > %v", total, before))
	low, shown, high := int64(0), int64(0), int64(0)
	low = int64(before)
	shown = int64(eval[float64](p, total))
	high = s.stats(t).Messages
	if shown <= low || shown > high {
		t.Errorf("the page has %d messages, after %d and before the server's %d", shown, low, high)
	}
	points := `myriadPage.charts.get("connections").plot.data[0].length`
	was := eval[float64](p, points)
	p.until(fmt.Sprintf("%s > %v", points, was))
	p.until(`document.querySelectorAll("#walls tbody tr").length > 3 && document.querySelectorAll("#talkers tbody tr").length === 15`)
	p.control(s, n)
	requests, complaints := p.heard()
	requests = slices.DeleteFunc(requests, func(url string) bool { return strings.HasPrefix(url, s.admin) || strings.HasPrefix(url, "data:") })
	if len(complaints) > 0 || len(requests) > 0 {
		t.Errorf("in the browser: %v; loaded from elsewhere: %v", complaints, requests)
	}
}

// control uses the buttons.
func (p *tab) control(s liveServer, n int) {
	eval[bool](p, "window.confirm = () => true; true")
	p.do(chromedp.Click(`button[data-post="control/pause"]`))
	p.do(chromedp.WaitVisible("dialog input"))
	p.do(chromedp.SendKeys("dialog input", liveToken+"\r"))
	p.until(`document.querySelector("header .lead").textContent.includes("accepts nothing")`)
	if !s.stats(p.t).AcceptingPaused {
		p.t.Error("the page says that accepting is paused, and the server that it is not")
	}
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	p.do(chromedp.Click(`button[data-post="control/resume"]`)) // the token is asked for once
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n+1))
	p.do(chromedp.Click(`#talkers button[data-post^="control/close"]`))
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	if eval[bool](p, fmt.Sprintf("JSON.stringify({ ...localStorage, ...sessionStorage }).includes(%q) || document.documentElement.outerHTML.includes(%q)", liveToken, liveToken)) {
		p.t.Error("the token is kept where others can read it")
	}
}
