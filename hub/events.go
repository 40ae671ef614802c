package hub

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/web"
)

// opening is the Value of a stream of events until it has begun: then it is the client alone.
type opening struct {
	client *client
	names  [2][]string // by kind
}

// A stream whose connection ends tells the browser to wait for a time between these, so that
// not all who lost theirs at one moment come back at one.
const leastRetry, mostRetry = time.Second, 5 * time.Second

var errNoTopics = fmt.Errorf("%w: expected the parameter topic, or pattern, or several", errNoName)

func (f *front) events(w http.ResponseWriter, r *http.Request) {
	u, q, ok := f.admit(w, r, "topic", "pattern")
	if !ok {
		return
	}
	o := &opening{client: &client{format: stream, user: u}, names: [2][]string{topicKind: q["topic"], patternKind: q["pattern"]}}
	if err := f.check(o); err != nil {
		refuse(w, statusOf(err), f.hub.refuse(err))
		return
	}
	w.Header().Set("X-Accel-Buffering", "no") // nginx is not to wait for more
	_ = f.streams.Subscribe(w, r, o)
}

// check says what is wrong with a stream's topics while that can be a status.
func (f *front) check(o *opening) error {
	n := 0
	for k, names := range o.names {
		for _, name := range names {
			if err := f.hub.checkName(name); err != nil {
				return err
			}
			if !o.client.user.maySubscribe(kind(k), name) {
				return errDenied
			}
			n++
		}
	}
	if n == 0 {
		return errNoTopics
	}
	return nil
}

// streamOpened subscribes a stream: who has its head gets all that is published from then on.
func (f *front) streamOpened(c *myriad.Conn) {
	o := c.Value().(*opening)
	c.SetValue(o.client)
	retry := leastRetry + rand.N(mostRetry-leastRetry)
	_, _ = fmt.Fprintf(c, "retry: %d\n\n", retry.Milliseconds())
	for k, names := range o.names {
		for _, name := range names {
			if err := f.hub.subscribe(o.client, c.Ref(), kind(k), name, func(int) {}); err != nil {
				data, _ := json.Marshal(socketReply{Op: "error", Error: err.Error()}) // of strings, which can't fail
				_, _ = c.Write(web.Event{Name: "refused", Data: string(data)}.Bytes())
				_ = c.Close()
				return
			}
		}
	}
}

func (f *front) streamClosed(c *myriad.Conn, _ error) {
	if client, ok := c.Value().(*client); ok {
		f.hub.closed(client, c.Ref())
	}
}
