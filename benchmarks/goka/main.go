// counter BROKERS TOPIC COUNT GROUP: counts messages by key with goka, until it has counted COUNT.
// counter view BROKERS TABLE FOLDER: prints the seconds that a new view takes to recover a table.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/lovoo/goka"
	"github.com/lovoo/goka/codec"
	"github.com/lovoo/goka/storage"
)

func main() {
	if os.Args[1] == "view" {
		recoverView([]string{os.Args[2]}, goka.Table(os.Args[3]), os.Args[4])
		return
	}
	brokers, topic, group := []string{os.Args[1]}, goka.Stream(os.Args[2]), goka.Group(os.Args[4])
	wanted, err := strconv.ParseInt(os.Args[3], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var seen atomic.Int64
	count := func(ctx goka.Context, _ interface{}) {
		counted, _ := ctx.Value().(int64)
		ctx.SetValue(counted + 1)
		if seen.Add(1) == wanted {
			cancel()
		}
	}
	config := goka.DefaultConfig()
	config.Consumer.Offsets.Initial = -2
	goka.ReplaceGlobalConfig(config)
	tmc := goka.NewTopicManagerConfig()
	tmc.Table.Replication = 1
	builder := goka.TopicManagerBuilderWithConfig(config, tmc)
	graph := goka.DefineGroup(group,
		goka.Input(topic, new(codec.Bytes), count), goka.Persist(new(codec.Int64)))
	processor, err := goka.NewProcessor(brokers, graph, goka.WithTopicManagerBuilder(builder))
	if err != nil {
		log.Fatal(err)
	}
	if err := processor.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(seen.Load())
}

func recoverView(brokers []string, table goka.Table, folder string) {
	began := time.Now()
	view, err := goka.NewView(brokers, table, new(codec.String),
		goka.WithViewStorageBuilder(storage.DefaultBuilder(folder)))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- view.Run(ctx) }()
	// WaitRunning may end once the first partition is recovered.
	for !view.Recovered() {
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Println(time.Since(began).Seconds())
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}
