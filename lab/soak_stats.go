package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StatsSource tells why a server has turned connections away and closed them,
// since its start.
type StatsSource interface {
	Causes(ctx context.Context) (map[string]int64, error)
}

// MetricsSource reads them off the metrics that "serve --admin" shows, in the text
// format of Prometheus.
type MetricsSource struct {
	// Addr is the host:port of --admin.
	Addr string
	// client has a connection of its own, which stays; nil is one for each request.
	client *http.Client
}

// The bounds of reading metrics.
const (
	maxMetrics     = 1 << 20 // bytes
	metricsTimeout = 5 * time.Second
)

// causeMetrics are the metrics that count by cause, and what is put before the
// cause.
var causeMetrics = map[string]string{
	"myriad_connections_refused_total": "refused ",
	"myriad_connections_closed_total":  "",
}

// Causes implements StatsSource.
func (m MetricsSource) Causes(ctx context.Context) (causes map[string]int64, err error) {
	err = m.get(ctx, func(in io.Reader) error {
		causes, err = readCauses(in)
		return err
	})
	return causes, err
}

// get asks for the metrics and has them read.
func (m MetricsSource) get(ctx context.Context, read func(in io.Reader) error) error {
	return m.fetch(ctx, "/metrics", read)
}

// fetch asks for a path and has the answer read. It is not compressed: what that takes,
// the server would have.
func (m MetricsSource) fetch(ctx context.Context, path string, read func(in io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Addr+path, nil)
	if err != nil {
		return err
	}
	client := m.client
	if client == nil {
		client, ask.Close = http.DefaultClient, true // so that the server has no connection of ours
	}
	ask.Header.Set("Accept-Encoding", "identity")
	answer, err := client.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("metrics: status %s; expected 200", answer.Status)
	}
	return read(io.LimitReader(answer.Body, maxMetrics))
}

// readCauses reads lines such as name{cause="peer"} 12.
func readCauses(in io.Reader) (map[string]int64, error) {
	causes := make(map[string]int64)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "{")
		before, known := causeMetrics[name]
		if !known {
			continue
		}
		_, rest, ok := strings.Cut(rest, `cause="`)
		cause, rest, ok2 := strings.Cut(rest, `"`)
		_, value, ok3 := strings.Cut(rest, "} ")
		n, err := strconv.ParseFloat(value, 64)
		if !ok || !ok2 || !ok3 || err != nil {
			return nil, fmt.Errorf("metrics: %.100q; expected a line such as %s{cause=\"peer\"} 12", lines.Text(), name)
		}
		causes[before+cause] = int64(n)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if len(causes) == 0 {
		return nil, fmt.Errorf("metrics: no cause of an end; expected myriad_connections_closed_total")
	}
	return causes, nil
}
