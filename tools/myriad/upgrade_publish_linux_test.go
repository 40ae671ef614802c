package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// numbered is a message of a publisher: its name, a number, and whether it is the last.
var numbered = regexp.MustCompile(`^p(\d+) (\d+)( end)?$`)

// TestUpgradeHubPublishes publishes to a hub by many clients through two upgrades: each subscriber
// gets each message once, in the order of its publisher; and last values and counters go on.
func TestUpgradeHubPublishes(t *testing.T) {
	subscribers, topics, publishers := 800, 20, 4
	if testing.Short() {
		subscribers = 200
	}
	for _, model := range []string{"epoll", "uring", "goroutine"} {
		t.Run(model, func(t *testing.T) {
			s := upgradable(t, "", "hub", "--model", model, "--last-values", "100")
			var reading, publishing sync.WaitGroup
			for i := range subscribers {
				c := patient(t, s.addr)
				word, topic := "SUBSCRIBE", fmt.Sprintf("topic-%02d", i%topics)
				if i%10 == 9 {
					word, topic = "PSUBSCRIBE", topic+"*"
				}
				_, err := fmt.Fprintf(c, "%s %s\r\n", word, topic)
				must(t, err)
				in := bufio.NewReader(c)
				until(t, in, ":1")
				reading.Go(func() {
					if err := readNumbered(in, publishers); err != nil {
						t.Errorf("subscriber %d: %v", i, err)
					}
				})
			}
			over, published := make(chan struct{}), make([]int, publishers)
			for i := range publishers {
				c := patient(t, s.addr)
				in := bufio.NewReader(c)
				publishing.Go(func() {
					tick := time.NewTicker(20 * time.Millisecond)
					defer tick.Stop()
					for n, last := 1, ""; last == ""; n++ {
						select {
						case <-over:
							last = " end"
						default:
						}
						for topic := range topics {
							if last == "" {
								<-tick.C
							}
							message := fmt.Sprintf("p%d %d%s", i, n, last)
							_, err := fmt.Fprintf(c, "*3\r\n$7\r\nPUBLISH\r\n$8\r\ntopic-%02d\r\n$%d\r\n%s\r\n", topic, len(message), message)
							if err == nil {
								_, err = in.ReadString('\n')
							}
							if err != nil {
								t.Errorf("publisher %d: %v", i, err)
								return
							}
							published[i]++
						}
					}
				})
			}
			process := s.Process.Pid
			for upgrade := range 2 {
				testkit.WaitFor(t, "nothing is published", func() bool { return publishedBy(t, s) > int64(100*(upgrade+1)) })
				must(t, syscall.Kill(process, syscall.SIGUSR2))
				var found [][]string
				testkit.WaitFor(t, "word of the upgrade", func() bool {
					found = tookOver.FindAllStringSubmatch(s.stderr.String(), -1)
					return len(found) > upgrade
				})
				if n, _ := strconv.Atoi(found[upgrade][2]); n != subscribers+publishers {
					t.Errorf("%d connections have moved, want %d", n, subscribers+publishers)
				}
				process, _ = strconv.Atoi(found[upgrade][1])
			}
			close(over)
			publishing.Wait()
			reading.Wait()
			all := int64(0)
			for _, n := range published {
				all += int64(n)
			}
			testkit.WaitFor(t, "not all is counted", func() bool { return publishedBy(t, s) >= all })
			if n := publishedBy(t, s); n != all {
				t.Errorf("%d messages are counted as published, want %d", n, all)
			}
			c := patient(t, s.addr)
			_, err := io.WriteString(c, "SUBSCRIBE topic-00\r\n")
			must(t, err)
			in := bufio.NewReader(c)
			until(t, in, ":1")
			for range 6 {
				_, err = in.ReadString('\n')
				must(t, err)
			}
			if line, err := in.ReadString('\n'); err != nil || !strings.HasSuffix(line, " end\r\n") {
				t.Errorf("the last value is %q, %v", line, err)
			}
			next, err := os.FindProcess(process)
			must(t, err)
			s.endNext(t, next)
		})
	}
}

// patient is a connection of a client that waits for a busy machine.
func patient(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	must(t, c.SetDeadline(time.Now().Add(6*testkit.Timeout)))
	return c
}

// until reads up to a line.
func until(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	for line := ""; line != want+"\r\n"; {
		var err error
		line, err = in.ReadString('\n')
		must(t, err)
	}
}

// readNumbered reads messages until each publisher has sent its last one.
func readNumbered(in *bufio.Reader, publishers int) error {
	for last := map[string]int{}; publishers > 0; {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		found := numbered.FindStringSubmatch(strings.TrimSuffix(line, "\r\n"))
		if found == nil {
			continue
		}
		n, _ := strconv.Atoi(found[2])
		if n != last[found[1]]+1 {
			return fmt.Errorf("publisher %s: number %d behind %d", found[1], n, last[found[1]])
		}
		last[found[1]] = n
		if found[3] != "" {
			publishers--
		}
	}
	return nil
}

// publishedBy is how many messages the hub says to have had.
func publishedBy(t *testing.T, s *server) (n int64) {
	t.Helper()
	response, err := http.Get(s.admin + "/metrics")
	if err != nil {
		return 0 // it moves
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "\nmyriad_hub_published_total ")
	_, _ = fmt.Sscan(rest, &n)
	return n
}
