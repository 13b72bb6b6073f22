package lancespark;

/**
 * The class of `spark.sql.catalog.lance = lancespark.LanceCatalog`, with the settings `.root` and
 * `.storage.*`, before Spark 4.3.
 */
public class LanceCatalog extends AbstractLanceCatalog {}
