import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.Trigger;

/** A Spark job of somebody else, in Java: it copies a topic and knows of no offsets. */
public final class NumbersJob {
    private NumbersJob() {}

    /** Arguments: bootstrap servers, topic, checkpoint. */
    public static void main(String[] args) throws Exception {
        SparkSession spark = SparkSession.builder().master("local[1]").appName("numbers")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "1")
            .getOrCreate();
        spark.sparkContext().setLogLevel("ERROR");
        spark.readStream().format("kafka")
            .options(Map.of("kafka.bootstrap.servers", args[0], "subscribe", args[1],
                "startingOffsets", "earliest", "maxOffsetsPerTrigger", "500"))
            .load().selectExpr("CAST(value AS STRING) AS value").writeStream().format("noop")
            .option("checkpointLocation", args[2])
            .trigger(Trigger.ProcessingTime(100))
            .start().awaitTermination();
    }
}
