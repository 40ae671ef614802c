package hub

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// eventSubscription describes an event stream that a client has requested. Until the stream starts, the
// eventSubscription is the Value of the client's connection.
type eventSubscription struct {
	client *client
	names  [2][]string // by kind
	since  Position    // position of the last message received
}

// minRetry and maxRetry limit the random delay after which a browser reconnects.
const minRetry, maxRetry = time.Second, 5 * time.Second

var errNoTopics = fmt.Errorf("%w: expected at least one topic or pattern parameter", errEmptyName)

func (api *httpAPI) serveEventStream(w http.ResponseWriter, r *http.Request) {
	u, q, ok := api.checkRequestOrWriteError(w, r, "topic", "pattern", "since")
	if !ok {
		return
	}
	sub := &eventSubscription{client: &client{format: formatEvents, user: u, since: secondsSinceStart()}, names: [2][]string{Topic: q["topic"], Pattern: q["pattern"]}}
	err := api.checkEventTopicsAndRights(sub)
	if err == nil {
		err = api.parseReplayStart(sub, r, q)
	}
	if err != nil {
		writeHTTPError(w, statusForError(err), api.hub.countRefusal(err))
		return
	}
	w.Header().Set("X-Accel-Buffering", "no") // disable nginx's buffering
	_ = api.streams.Subscribe(w, r, sub)
}

// checkEventTopicsAndRights validates sub and checks the user's rights. Call it before the response begins.
func (api *httpAPI) checkEventTopicsAndRights(sub *eventSubscription) error {
	n := 0
	for k, names := range sub.names {
		for _, name := range names {
			if err := api.hub.checkNameLength(name); err != nil {
				return err
			}
			if !sub.client.user.maySubscribe(Kind(k), name) {
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

// parseReplayStart sets sub.since from the header Last-Event-ID. If the request lacks the header, it uses the parameter
// "since". If no messages of the topics are stored, it ignores the header and rejects the parameter.
func (api *httpAPI) parseReplayStart(sub *eventSubscription, r *http.Request, q url.Values) (err error) {
	var kept bool
	for k, names := range sub.names {
		kept = kept || slices.ContainsFunc(names, func(name string) bool { return api.hub.keepsAny(Kind(k), name) })
	}
	switch lastEventID := r.Header.Get("Last-Event-ID"); {
	case !kept && q.Has("since"):
		err = fmt.Errorf("%w: the messages of these topics are not kept; omit the since parameter", errBadPosition)
	case !kept:
	case lastEventID != "":
		sub.since, err = api.hub.Replay.parsePlausiblePosition(lastEventID)
	case q.Has("since"):
		sub.since, err = api.hub.Replay.parsePlausiblePosition(q.Get("since"))
	}
	return err
}

func (api *httpAPI) subscribeOpenedEventStream(c *tcp.Conn) {
	sub := c.Value().(*eventSubscription)
	c.SetValue(sub.client)
	// A random delay keeps clients from reconnecting all at once.
	retry := minRetry + rand.N(maxRetry-minRetry)
	_, _ = fmt.Fprintf(c, "retry: %d\n\n", retry.Milliseconds())
	if err := api.subscribeAndReplayEventStream(c, sub); err != nil {
		api.sendRefusedEventAndCloseStream(c, err)
	}
}

func (api *httpAPI) subscribeAndReplayEventStream(c *tcp.Conn, sub *eventSubscription) error {
	replay := &clientReplay{hub: api.hub, client: sub.client, ref: c.Ref(), pos: sub.since, closeClient: api.sendRefusedEventAndCloseStream}
	for k, names := range sub.names {
		for _, name := range names {
			if !api.hub.keepsAny(Kind(k), name) {
				if err := api.hub.subscribe(sub.client, c.Ref(), Kind(k), name, func(int) {}); err != nil {
					return err
				}
			} else if !sub.client.isSubscribed(Kind(k), name) {
				t, err := api.hub.authorizeAndRecordSubscription(sub.client, c.Ref(), Kind(k), name, api.hub.Limits)
				if err != nil {
					return api.hub.countRefusal(err)
				}
				replay.topics = append(replay.topics, t)
			}
		}
	}
	if len(replay.topics) == 0 {
		return nil
	}
	replay.initStartPositionAndLastValues()
	return replay.replayNowOrInBackground(c)
}

func (api *httpAPI) sendRefusedEventAndCloseStream(c *tcp.Conn, reason error) {
	data, _ := json.Marshal(socketReply{Op: "error", Error: reason.Error()}) // strings only: can't fail
	_, _ = c.Write(web.Event{Name: "refused", Data: string(data)}.Bytes())
	_ = c.Close()
}
