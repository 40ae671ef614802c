package load

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/stall"
)

// BenchmarkTruth holds what the generator says of a server that stalls against what the
// server's plan has, in real time: for each of p50, p99 and p99.9 the truth, what was
// reported, and the quotient of the two; and p99 of a closed loop beside it. The truth
// is worked out from the intended times, not from those at which anything was sent.
// Every message is waited for, so that both are of all that was planned. Run it once:
//
//	go test ./load -run '^$' -bench Truth -benchtime 1x
func BenchmarkTruth(b *testing.B) {
	command := filepath.Join(b.TempDir(), "myriad")
	if out, err := exec.Command("go", "build", "-o", command, "github.com/myriad-go/myriad/cmd/myriad").CombinedOutput(); err != nil {
		b.Fatalf("building the command: %v\n%s", err, out)
	}
	plan := stall.Plan{Capacity: 20_000, Stall: 200 * time.Millisecond, Every: time.Second}
	for _, share := range []float64{0.5, 0.9, 1.1} {
		for name, poisson := range map[string]bool{"constant": false, "Poisson": true} {
			b.Run(strconv.Itoa(int(100*share))+"%/"+name, func(b *testing.B) {
				cfg := Config{
					Connections: 200, Pipeline: 100, Seed: 7, Duration: 10 * time.Second, Drain: time.Minute,
					Rate: Rate{PerSecond: share * plan.Capacity * 0.8, Poisson: poisson},
				}
				for b.Loop() {
					benchTruth(b, command, plan, cfg)
				}
			})
		}
	}
}

func benchTruth(b *testing.B, command string, plan stall.Plan, cfg Config) {
	s := startStalling(b, command, plan)
	cfg.Target = s.addr
	r, got := runKept(b, cfg)
	offset := time.Duration(r.traffic.began.UnixNano() - s.epoch)
	intended := intendedTimes(cfg, time.Duration(r.traffic.begin.Load())+offset)
	_, truth := truthOf(plan.Truth(intended))
	if got.Latency.Count != int64(len(intended)) {
		b.Fatalf("%d measured of %d planned: %v", got.Latency.Count, len(intended), got.Err())
	}
	for _, p := range []struct {
		name       string
		truth, got time.Duration
	}{{"p50", truth.P50, got.Latency.P50}, {"p99", truth.P99, got.Latency.P99}, {"p99.9", truth.P999, got.Latency.P999}} {
		b.ReportMetric(p.truth.Seconds()*1e3, p.name+"-truth-ms")
		b.ReportMetric(p.got.Seconds()*1e3, p.name+"-ms")
		b.ReportMetric(float64(p.got)/float64(p.truth), p.name+"-ratio")
	}
	b.ReportMetric(got.Late.P99.Seconds()*1e3, "late-p99-ms")
	b.ReportMetric(0, "ns/op")
	cfg.Rate, cfg.Pipeline, cfg.Connections, cfg.Duration = Rate{}, 1, 10, 3*time.Second
	_, closed := runKept(b, cfg)
	b.ReportMetric(closed.Latency.P99.Seconds()*1e3, "closed-p99-ms")
}

// runKept is Run, but keeps the run.
func runKept(b *testing.B, cfg Config) (*run, *Result) {
	cfg = cfg.filled()
	model, err := models.Find(cfg.Model)
	if err != nil {
		b.Fatal(err)
	}
	targets, err := resolveAll(b.Context(), &cfg)
	if err != nil {
		b.Fatal(err)
	}
	r, err := newRun(cfg, targets, model.Start)
	if err != nil {
		b.Fatal(err)
	}
	result, err := r.run(b.Context(), r.phases)
	if err != nil {
		b.Fatal(err)
	}
	return r, result
}

// stallingServer is a server in a process of its own; its stalls are counted from the
// epoch, in nanoseconds of the calendar.
type stallingServer struct {
	addr  string
	epoch int64
}

var (
	saysEpoch = regexp.MustCompile(`stall: epoch (\d+)ns`)
	saysAddr  = regexp.MustCompile(`serving stall on (\S+)`)
)

// startStalling starts the server on the first processor, and stops it at the end of the
// benchmark.
func startStalling(b *testing.B, command string, plan stall.Plan) (s stallingServer) {
	cmd := exec.Command(command, "serve", "--app", "stall", "--addr", "127.0.0.1:0", "--model", "epoll", "--loops", "1",
		"--stall-capacity", strconv.FormatFloat(plan.Capacity, 'f', -1, 64), "--stall", plan.Stall.String(), "--stall-every", plan.Every.String())
	says, out, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer says.Close()
	cmd.Stdout, cmd.Stderr = out, out
	startOn(b, cmd)
	out.Close()
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	lines := bufio.NewScanner(says)
	for (s.addr == "" || s.epoch == 0) && lines.Scan() {
		if m := saysEpoch.FindStringSubmatch(lines.Text()); m != nil {
			s.epoch, _ = strconv.ParseInt(m[1], 10, 64)
		}
		if m := saysAddr.FindStringSubmatch(lines.Text()); m != nil {
			s.addr = m[1]
		}
	}
	if s.addr == "" || s.epoch == 0 {
		b.Fatalf("the server says no address or epoch: %+v", s)
	}
	return s
}

// startOn starts a process on the first processor, whose threads stay there.
func startOn(b *testing.B, cmd *exec.Cmd) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		b.Fatal(err)
	}
	for i := 0; first.Count() == 0; i++ {
		if all.IsSet(i) {
			first.Set(i)
		}
	}
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		b.Fatal(err)
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &all); back != nil {
		b.Fatal(back)
	}
	if err != nil {
		b.Fatal(err)
	}
}
