package pool_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// With the zero Config: jobs are submitted, and Close waits for them.
func ExamplePool() {
	p, err := pool.New(pool.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	sum := 0
	for i := range 100 {
		err := p.Submit(context.Background(), func(ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			sum += i
		})
		if err != nil {
			log.Print(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if dropped, err := p.Close(ctx); err != nil || len(dropped) > 0 {
		log.Printf("%d jobs were dropped: %v", len(dropped), err)
	}
	fmt.Println(sum, "from", p.Stats().Finished, "jobs")
	// Output: 4950 from 100 jobs
}

// A call returns a result, and an error if it did not run.
func ExampleCall() {
	p, err := pool.New(pool.Config{Max: 4})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	greeting, err := pool.Call(ctx, p, func(ctx context.Context) (string, error) {
		return strings.ToUpper("hello"), nil
	})
	fmt.Println(greeting, err)

	_, err = pool.Call(ctx, p, func(ctx context.Context) (string, error) {
		panic("no greeting")
	})
	var panicked *pool.PanicError
	fmt.Println(errors.As(err, &panicked), err)
	// Output:
	// HELLO <nil>
	// true pool: a job panicked: no greeting
}

type request struct {
	name   string
	answer chan string
}

func (r *request) Run(ctx context.Context) { r.answer <- r.name + " is done" }

func (r *request) Dropped(why error) { r.answer <- r.name + " is not: " + why.Error() }

// A task has a context that limits its wait. A job that is a Dropper is told if it will not run.
func ExampleTask() {
	p, err := pool.New(pool.Config{Max: 8, Queue: 1000})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r := &request{name: "a request of client 17", answer: make(chan string, 1)}
	err = p.TrySubmitTask(pool.Task{Job: r, Ctx: ctx})
	switch {
	case errors.Is(err, pool.ErrFull):
		fmt.Println("try again later")
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println(<-r.answer)
	}
	// Output: a request of client 17 is done
}
